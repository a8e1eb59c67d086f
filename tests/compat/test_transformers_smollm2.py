"""SmolLM2 in fp32 through transformers: greedy tokens are those of transformers' own attention; the long tier."""

from __future__ import annotations

import pytest
import torch

from chunkattn.compat import transformers as shim

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
if shim.VERSIONS.problem(transformers.__version__):
    pytest.skip(shim.VERSIONS.problem(transformers.__version__), allow_module_level=True)

pytestmark = pytest.mark.full
CHUNK = 64  # tokens of a step of continuous batching
ANSWER = 24


@pytest.fixture(scope="module")
def smollm2(smollm2_fp32):
    shim.register()
    model = transformers.AutoModelForCausalLM.from_pretrained(smollm2_fp32, dtype=torch.float32).eval()
    return model, transformers.AutoTokenizer.from_pretrained(smollm2_fp32)


def texts(tokenizer):
    """Prompts of some 30 to 700 tokens."""
    story = "The miller counted the sacks again, and again there was one too few. Nobody had come through the gate. "
    asked = ["Name three rivers of Europe.", "Write one sentence about attention.", story * 30 + "Who took the sack?"]
    chats = [[{"role": "user", "content": text}] for text in asked]
    return [tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) for chat in chats]


@pytest.mark.parametrize("theirs", ["sdpa", "eager"])
def test_generate(smollm2, theirs):
    model, tokenizer = smollm2
    tokenizer.padding_side, tokenizer.pad_token = "left", tokenizer.eos_token
    inputs = tokenizer(texts(tokenizer), return_tensors="pt", padding=True)
    answers = {}
    for name in (theirs, shim.NAME):
        model.set_attn_implementation(name)
        assert model.config._attn_implementation == name
        answers[name] = model.generate(**inputs, do_sample=False, max_new_tokens=ANSWER, min_new_tokens=ANSWER).tolist()
    assert answers[shim.NAME] == answers[theirs]


def test_continuous_batching(smollm2):
    model, tokenizer = smollm2
    prompts = [tokenizer(text)["input_ids"] for text in texts(tokenizer)]
    prompts += [prompts[2][:n] for n in (1, 40, 333)]
    generation = transformers.GenerationConfig(do_sample=False, max_new_tokens=ANSWER, eos_token_id=-1, pad_token_id=0)
    assert max(map(len, prompts)) > 5 * CHUNK
    batching = transformers.ContinuousBatchingConfig(page_size=32, num_blocks=128, max_batch_tokens=CHUNK)
    answers = {}
    for name in ("sdpa", shim.NAME):
        model.set_attn_implementation(name)
        outputs = model.generate_batch(
            inputs=prompts, generation_config=generation, continuous_batching_config=batching, progress_bar=False
        )
        by_prompt = {tuple(output.prompt_ids): output.generated_tokens for output in outputs.values()}
        answers[name] = [by_prompt[tuple(prompt)] for prompt in prompts]
    assert all(len(tokens) == ANSWER for tokens in answers[shim.NAME])
    assert answers[shim.NAME] == answers["sdpa"]

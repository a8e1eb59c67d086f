"""Hugging Face models with chunkattn against their own eager attention; skipped where transformers is absent."""

from __future__ import annotations

import pytest
import torch
from dense_attention import dense_attention

import chunkattn
from chunkattn.compat import transformers as shim
from chunkattn.compat.versions import VersionRange
from chunkattn.testing import assert_rows_close

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
if shim.VERSIONS.problem(transformers.__version__):
    pytest.skip(shim.VERSIONS.problem(transformers.__version__), allow_module_level=True)

SIZES = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "eos_token_id": None,
    "bos_token_id": 1,
}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "mistral, window 6": lambda: transformers.MistralConfig(**SIZES, sliding_window=6),
    "qwen2, every other layer windowed": lambda: transformers.Qwen2Config(
        **SIZES, sliding_window=6, use_sliding_window=True, layer_types=["sliding_attention", "full_attention"] * 1
        + ["sliding_attention"],
    ),
    "gemma2, window and soft-cap": lambda: transformers.Gemma2Config(
        **SIZES, sliding_window=6, head_dim=16, attn_logit_softcapping=3.0
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def registered():
    shim.register()


def model_of(config, name, seed=0):
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=name).eval().float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)  # at their initial size every token is as likely as any other
    return model


def prompt(length, seed=0):
    return torch.randint(2, 97, (1, length), generator=torch.Generator().manual_seed(seed))


def both(config, **inputs):
    results = []
    for name in ("eager", shim.NAME):
        model = model_of(config(), name)
        assert model.config._attn_implementation == name
        results.append(model.generate(**inputs, do_sample=False, max_new_tokens=12, min_new_tokens=12).tolist())
    return results


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("length", [1, 21])
def test_greedy_tokens_of_one_prompt(family, length):
    eager, ours = both(CONFIGS[family], input_ids=prompt(length))
    assert ours == eager


@pytest.mark.parametrize("family", CONFIGS)
def test_greedy_tokens_of_a_left_padded_batch(family):
    lengths = [21, 4, 13]
    ids, mask = torch.zeros(3, 21, dtype=torch.long), torch.zeros(3, 21, dtype=torch.long)
    for i, n in enumerate(lengths):
        ids[i, -n:], mask[i, -n:] = prompt(n, i), 1
    eager, ours = both(CONFIGS[family], input_ids=ids, attention_mask=mask)
    assert ours == eager


@pytest.mark.parametrize("family", ["llama", "mistral, window 6"])
def test_greedy_tokens_over_a_static_cache(family):
    eager, ours = both(CONFIGS[family], input_ids=prompt(21), cache_implementation="static")
    assert ours == eager


def test_padding_among_the_tokens_is_refused():
    model = model_of(CONFIGS["llama"](), shim.NAME)
    mask = torch.ones(1, 9, dtype=torch.long)
    mask[0, 4] = 0
    with pytest.raises(chunkattn.UnsupportedError, match=r"^attention_mask: "):
        model(prompt(9), attention_mask=mask)


def test_a_mask_of_the_callers_own_is_refused():
    model = model_of(CONFIGS["llama"](), shim.NAME)
    with pytest.raises(chunkattn.UnsupportedError, match=r"^attention_mask: "):
        model(prompt(9), attention_mask=torch.zeros(1, 1, 9, 9))


def test_another_mask_is_refused():
    from chunkattn.compat.transformers.key_spans import key_spans

    def prefix_sees_itself(batch, head, query, key):
        return (key <= query) | (key < 4)

    with pytest.raises(chunkattn.UnsupportedError, match=r"^mask_function: "):
        key_spans(1, 6, 6, mask_function=prefix_sees_itself)


def test_packed_sequences_without_a_paged_cache_are_refused():
    model = model_of(CONFIGS["llama"](), shim.NAME)
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    with pytest.raises(chunkattn.UnsupportedError, match=r"^mask_function: "):
        model(prompt(9), position_ids=positions, use_cache=False)


class Layer(torch.nn.Module):
    is_causal = True
    layer_idx = 0


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({}, {"causal": True}),
        ({"is_causal": False}, {"causal": False}),
        ({"sliding_window": 3}, {"causal": True, "window": (2, -1)}),
        ({"softcap": 2.0, "scaling": 0.7}, {"causal": True, "softcap": 2.0, "scale": 0.7}),
        (
            {"s_aux": torch.tensor([0.3, -2.0, 1.0, 4.0])},
            {"causal": True, "sinks": torch.tensor([0.3, -2.0, 1.0, 4.0])},
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_options(options, want, dtype):
    from chunkattn.compat.transformers.attention import attention_forward

    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, n, 16).to(dtype) for heads, n in ((4, 5), (2, 11), (2, 11)))
    out, weights = attention_forward(Layer(), q, k, v, None, **options)
    assert weights is None
    for i in range(2):
        assert_rows_close(out[i], dense_attention(*(x[i].transpose(0, 1) for x in (q, k, v)), **want)[0])


@pytest.mark.parametrize(
    "refused",
    [
        {"dropout": 0.1},
        {"position_bias": torch.zeros(1)},
        {"output_attentions": True},
        {"cu_seq_lens_q": torch.zeros(2)},
    ],
    ids=lambda refused: next(iter(refused)),
)
def test_refuses_by_name(refused):
    from chunkattn.compat.transformers.attention import attention_forward

    q = torch.zeros(1, 4, 1, 16)
    with pytest.raises(chunkattn.UnsupportedError, match=f"^{next(iter(refused))}: "):
        attention_forward(Layer(), q, q, q, None, **refused)


@pytest.mark.parametrize("family", CONFIGS)
def test_continuous_batching(family):
    lengths = [21, 4, 40, 1, 13]
    prompts = [prompt(n, i)[0].tolist() for i, n in enumerate(lengths)]
    generation = transformers.GenerationConfig(do_sample=False, max_new_tokens=10, eos_token_id=-1, pad_token_id=0)
    batching = transformers.ContinuousBatchingConfig(page_size=16, num_blocks=64, max_batch_tokens=16)
    results = []
    for name in ("sdpa", shim.NAME):
        if name == "sdpa" and family.startswith("gemma2"):
            name = "eager"  # its soft-cap is not in sdpa
        model = model_of(CONFIGS[family](), name)
        outputs = model.generate_batch(
            inputs=prompts, generation_config=generation, continuous_batching_config=batching, progress_bar=False
        )
        by_prompt = {tuple(output.prompt_ids): output.generated_tokens for output in outputs.values()}
        results.append([by_prompt[tuple(p)] for p in prompts])
    assert all(len(tokens) == 10 for tokens in results[1])
    assert results[1] == results[0]


@pytest.mark.parametrize(
    ("version", "fits"), [("5.18.9", False), ("5.19.0", True), ("5.19.3.dev1", True), ("5.20.0", False), ("", False)]
)
def test_version_range(version, fits):
    versions = VersionRange("transformers", first=(5, 19), end=(5, 20), extra="transformers")
    if fits:
        versions.check(version)
    else:
        with pytest.raises(ImportError, match=r"^transformers: expected a version from 5.19 on and below 5.20, got"):
            versions.check(version)

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
GEMMA2 = {"head_dim": 16, "attn_logit_softcapping": 3.0, "query_pre_attn_scalar": 1}  # scores the cap matters to
MIXED_LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
FAMILIES = {
    "llama": ("Llama", {}),
    "mistral, window 6": ("Mistral", {"sliding_window": 6}),
    "qwen2, every other layer windowed": (
        "Qwen2",
        {"sliding_window": 6, "use_sliding_window": True, "layer_types": MIXED_LAYERS},
    ),
    "gemma2, window and soft-cap": ("Gemma2", {"sliding_window": 6, **GEMMA2}),
}


def config_of(family, **changes):
    name, options = FAMILIES[family]
    return getattr(transformers, f"{name}Config")(**{**SIZES, **options, **changes})


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


def tokens_of(config, name, **inputs):
    model = model_of(config, name)
    assert model.config._attn_implementation == name
    return model.generate(**inputs, do_sample=False, max_new_tokens=12, min_new_tokens=12).tolist()


def both(family, **inputs):
    return [tokens_of(config_of(family), name, **inputs) for name in ("eager", shim.NAME)]


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        *((family, {"sliding_window": 4096}) for family in FAMILIES if family != "llama"),
        ("gemma2, window and soft-cap", {"attn_logit_softcapping": None}),
    ],
)
def test_what_families_differ_in_changes_their_tokens(family, changes):
    with_it, without = (
        tokens_of(config, "eager", input_ids=prompt(21)) for config in (config_of(family), config_of(family, **changes))
    )
    assert with_it != without


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("length", [1, 21])
def test_greedy_tokens_of_one_prompt(family, length):
    eager, ours = both(family, input_ids=prompt(length))
    assert ours == eager


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_of_a_left_padded_batch(family):
    lengths = [21, 4, 13]
    ids, mask = torch.zeros(3, 21, dtype=torch.long), torch.zeros(3, 21, dtype=torch.long)
    for i, n in enumerate(lengths):
        ids[i, -n:], mask[i, -n:] = prompt(n, i), 1
    eager, ours = both(family, input_ids=ids, attention_mask=mask)
    assert ours == eager


@pytest.mark.parametrize("family", ["llama", "mistral, window 6"])
def test_greedy_tokens_over_a_static_cache(family):
    eager, ours = both(family, input_ids=prompt(21), cache_implementation="static")
    assert ours == eager


def test_padding_among_the_tokens_is_refused():
    model = model_of(config_of("llama"), shim.NAME)
    mask = torch.ones(1, 9, dtype=torch.long)
    mask[0, 4] = 0
    with pytest.raises(chunkattn.UnsupportedError, match=r"^attention_mask: "):
        model(prompt(9), attention_mask=mask)


def test_a_mask_of_the_callers_own_is_refused():
    model = model_of(config_of("llama"), shim.NAME)
    with pytest.raises(chunkattn.UnsupportedError, match=r"^attention_mask: "):
        model(prompt(9), attention_mask=torch.zeros(1, 1, 9, 9))


def test_another_mask_is_refused():
    from chunkattn.compat.transformers.key_spans import key_spans

    def prefix_sees_itself(batch, head, query, key):
        return (key <= query) | (key < 4)

    with pytest.raises(chunkattn.UnsupportedError, match=r"^mask_function: "):
        key_spans(1, 6, 6, mask_function=prefix_sees_itself)


def test_packed_sequences_without_a_paged_cache_are_refused():
    model = model_of(config_of("llama"), shim.NAME)
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


@pytest.mark.parametrize("family", FAMILIES)
def test_continuous_batching(family):
    lengths = [21, 4, 40, 1, 13]
    prompts = [prompt(n, i)[0].tolist() for i, n in enumerate(lengths)]
    generation = transformers.GenerationConfig(do_sample=False, max_new_tokens=10, eos_token_id=-1, pad_token_id=0)
    batching = transformers.ContinuousBatchingConfig(page_size=16, num_blocks=64, max_batch_tokens=16)

    def batched(name):
        outputs = model_of(config_of(family), name).generate_batch(
            inputs=prompts, generation_config=generation, continuous_batching_config=batching, progress_bar=False
        )
        by_prompt = {tuple(output.prompt_ids): output.generated_tokens for output in outputs.values()}
        return [by_prompt[tuple(p)] for p in prompts]

    if "attn_logit_softcapping" in FAMILIES[family][1]:  # transformers' own paged attention leaves the cap out
        answers = [tokens_of(config_of(family), "eager", input_ids=torch.tensor([p]))[0] for p in prompts]
        expected = [answer[len(p) : len(p) + 10] for answer, p in zip(answers, prompts)]
    else:
        expected = batched("sdpa")
    assert all(len(tokens) == 10 for tokens in expected)
    assert batched(shim.NAME) == expected


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

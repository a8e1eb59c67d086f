"""Named settings differ by their rule."""

from __future__ import annotations

import pytest

from chunkattn.simulation import PRESETS, parse_setting
from chunkattn.simulation.settings import ALIASES


def test_presets_differ_and_say_where_they_are_from() -> None:
    rules = [(setting.disaggregated, sorted(setting.options.items(), key=str)) for setting in PRESETS.values()]
    assert all(rules.count(rule) == 1 for rule in rules)
    assert all(setting.rule and setting.source for setting in PRESETS.values())
    assert {"whole", "sarathi", "vllm", "sglang", "trtllm", "splitfuse", "disaggregated"} == set(PRESETS)
    assert parse_setting("orca").options == PRESETS["whole"].options
    assert set(ALIASES.values()) <= set(PRESETS)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("sarathi:256", {"token_budget": 256}),
        ("vllm:whole", {"token_budget": None}),
        ("vllm:token_budget=1024:policy=sjf", {"token_budget": 1024, "policy": "sjf"}),
        ("sarathi:enable_prefix_caching=true:watermark=0.5", {"enable_prefix_caching": True, "watermark": 0.5}),
        ("vllm:num_draft_tokens=3", {"num_draft_tokens": 3}),
    ],
)
def test_changes(text: str, options: dict[str, object]) -> None:
    setting = parse_setting(text)
    assert setting.name == text
    assert {name: setting.options[name] for name in options} == options
    for name, value in options.items():  # the rule says what is not the preset's
        assert f"{name}={'whole' if value is None else str(value).replace('T', 't')}" in setting.rule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fast", "setting: expected one of whole, sarathi"),
        ("vllm:speed=3", "setting: expected an option of .* got 'speed'"),
        ("vllm:many", "expected a value of type int | None for token_budget"),
        ("vllm:prefill_first=maybe", "expected a value of type bool for prefill_first"),
        ("vllm:policy=lifo", "policy: expected one of fcfs, sjf, fair"),
        ("vllm:0", "setting: expected a budget of at least 1 token a step in 'vllm:0', got 0"),
        ("sarathi:-5", "setting: expected a budget of at least 1 token a step in 'sarathi:-5', got -5"),
        ("vllm:sjf_aging=nan", "setting: 'vllm:sjf_aging=nan' cannot be: sjf_aging: expected at least 0, got nan"),
        ("vllm:watermark=nan", "setting: 'vllm:watermark=nan' cannot be: watermark: expected a share in"),
        ("vllm:watermark=2", "setting: 'vllm:watermark=2' cannot be: watermark: expected a share in"),
    ],
)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_setting(text)


def test_a_small_budget_runs_fewer_requests() -> None:
    config = parse_setting("sarathi:8").config(max_num_seqs=64, page_size=16, num_pages=10)
    assert (config.token_budget, config.max_num_seqs) == (8, 8)

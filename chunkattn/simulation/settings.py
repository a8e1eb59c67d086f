"""Ways to set up an engine that people compare, each by the rule that makes it different."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from chunkattn.scheduler import SchedulerConfig


@dataclass(frozen=True)
class Setting:
    """A named way to schedule.

    Attributes:
        name: as the command line and the report call it.
        rule: what it does, in a sentence.
        source: where the rule is from.
        options: fields of `SchedulerConfig` that it sets.
        disaggregated: prompts on one worker, answers on another.
    """

    name: str
    rule: str
    source: str
    options: Mapping[str, Any] = field(default_factory=dict)
    disaggregated: bool = False

    @property
    def token_budget(self) -> int | None:
        budget: int | None = self.options["token_budget"]
        return budget

    def config(self, *, max_num_seqs: int, page_size: int, num_pages: int) -> SchedulerConfig:
        """The scheduler's configuration on a machine.

        A setting whose budget is below ``max_num_seqs`` runs as many requests as it has budget for: every running
        request must get its decode in every step.
        """
        options = dict(self.options)
        budget = options.pop("token_budget")
        seqs = min(options.pop("max_num_seqs", max_num_seqs), max_num_seqs if budget is None else max(budget, 1))
        return SchedulerConfig(budget, seqs, page_size, num_pages, **options)


PRESETS = {
    setting.name: setting
    for setting in (
        Setting(
            "whole",
            "every prompt runs whole in one step, beside the decodes; pages for the whole answer are set aside at the "
            "start",
            "Orca: Yu et al., OSDI 2022, iteration-level scheduling and selective batching",
            {"token_budget": None, "reserve_max_tokens": True, "enable_prefix_caching": False},
        ),
        Setting(
            "sarathi",
            "decodes first, then running prompts, then new ones, together at most 512 tokens a step; 1 % of the pages "
            "stay free",
            "Sarathi-Serve: Agrawal et al., OSDI 2024, stall-free batching; 512 is its strict setting",
            {"token_budget": 512, "watermark": 0.01, "enable_prefix_caching": False},
        ),
        Setting(
            "vllm",
            "as sarathi with 2048 tokens and a prefix cache; a prompt takes its pages when it is admitted",
            "vLLM 0.33, max_num_batched_tokens 2048 and scheduler_reserve_full_isl, its defaults",
            {"token_budget": 2048},
        ),
        Setting(
            "sglang",
            "steps have prompts or decodes, never both, and prompts go first: decodes wait; chunks of 8192; a prefix "
            "cache",
            "SGLang 0.5.23, chunked_prefill_size 8192 without enable_mixed_chunk, its defaults on large GPUs",
            {"token_budget": 8192, "prefill_first": True},
        ),
        Setting(
            "trtllm",
            "decodes and prompts mixed, 8192 tokens a step, a cut chunk ends at a multiple of 64; pages for the whole "
            "answer are set aside, so nobody is preempted; a prefix cache",
            "TensorRT-LLM, capacity scheduler GUARANTEED_NO_EVICT with chunked context",
            {"token_budget": 8192, "chunk_alignment": 64, "reserve_max_tokens": True},
        ),
        Setting(
            "splitfuse",
            "decodes first, then prompts, also short ones cut, so that every step has the same number of tokens: 768",
            "DeepSpeed-FastGen: Holmes et al., 2024, Dynamic SplitFuse; max_ragged_batch_size 768",
            {"token_budget": 768, "enable_prefix_caching": False},
        ),
        Setting(
            "disaggregated",
            "one worker runs whole prompts, another the decodes; keys and values go over page by page",
            "Splitwise: Patel et al., ISCA 2024; DistServe: Zhong et al., OSDI 2024",
            {"token_budget": None, "enable_prefix_caching": False},
            disaggregated=True,
        ),
    )
}
ALIASES = {"orca": "whole", "chunked": "sarathi", "fastgen": "splitfuse", "distserve": "disaggregated"}
_OPTIONS = {f.name for f in fields(SchedulerConfig)} - {"page_size", "num_pages", "fair_weights"}


def parse_setting(text: str) -> Setting:
    """A setting from the command line.

    Args:
        text: a preset's name, then changes: ``sarathi``, ``sarathi:256`` (the budget) or
            ``vllm:token_budget=1024:policy=sjf``.

    Raises:
        ValueError: an unknown name or option, or a value that is none.
    """
    name, *changes = text.split(":")
    preset = PRESETS.get(ALIASES.get(name, name))
    if preset is None:
        raise ValueError(f"setting: expected one of {', '.join([*PRESETS, *ALIASES])}, got {name!r}")
    options, rule = dict(preset.options), preset.rule
    if changes:
        rule += f"; here with {', '.join(change if '=' in change else f'token_budget={change}' for change in changes)}"
    for change in changes:
        option, separator, value = change.rpartition("=")
        option = option if separator else "token_budget"
        if option not in _OPTIONS:
            raise ValueError(
                f"setting: expected an option of {', '.join(sorted(_OPTIONS))} in {text!r}, got {option!r}"
            )
        options[option] = _value(option, value, text)
    setting = Setting(text, rule, preset.source, options, preset.disaggregated)
    budget = setting.token_budget
    if budget is not None and budget < 1:
        raise ValueError(f"setting: expected a budget of at least 1 token a step in {text!r}, got {budget}")
    try:
        setting.config(max_num_seqs=1, page_size=1, num_pages=1)
    except ValueError as error:
        raise ValueError(f"setting: {text!r} cannot be: {error}") from None
    return setting


def _value(option: str, value: str, text: str) -> int | float | bool | str | None:
    """A change's value in the type of its option."""
    kind = str(next(f.type for f in fields(SchedulerConfig) if f.name == option))
    if kind == "int | None" and value in ("whole", "none"):
        return None
    if kind == "bool" and value in ("true", "false"):
        return value == "true"
    try:
        if kind == "str":
            return value
        if kind != "bool":
            return float(value) if kind == "float" else int(value)
    except ValueError:
        pass
    raise ValueError(f"setting: expected a value of type {kind} for {option} in {text!r}, got {value!r}")

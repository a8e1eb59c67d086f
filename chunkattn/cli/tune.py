"""The options of `chunkattn tune`."""

from __future__ import annotations

from pathlib import Path

import click
from click.core import ParameterSource

from chunkattn.cli.one_sentence import one_sentence
from chunkattn.cli.option_types import ARRIVALS, POSITIVE, FiniteRange
from chunkattn.cli.table_warnings import plain_table_warnings


@click.group()
def tune() -> None:
    """Settings by measurement."""


def _refuse_unused(names: tuple[str, ...], reason: str) -> None:
    """Refuses options on the command line that would change nothing.

    Args:
        names: of the command's parameters.
        reason: why they would not, e.g. ``"without MODEL only"``.
    """
    context = click.get_current_context()
    for name in names:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = next(one.opts[0] for one in context.command.params if one.name == name)
            raise click.UsageError(f"{option}: expected it {reason}")


@tune.command()
@click.argument("model", required=False)
@click.option("--q-heads", default=32, show_default=True, type=click.IntRange(min=1), help="Without MODEL.")
@click.option("--kv-heads", default=8, show_default=True, type=click.IntRange(min=1), help="Without MODEL.")
@click.option("--head-dim", default=128, show_default=True, type=click.IntRange(min=1), help="Without MODEL.")
@click.option("--head-dim-v", type=click.IntRange(min=1), help="Without MODEL, of V.  [as --head-dim]")
@click.option(
    "--dtype",
    "dtypes",
    default=("bf16",),
    show_default=True,
    multiple=True,
    type=click.Choice(("bf16", "fp16", "fp32")),
    help="Of queries; may be given several times.",
)
@click.option(
    "--kv-dtype", type=click.Choice(("bf16", "fp16", "fp32", "fp8_e4m3", "fp8_e5m2", "int8")), help="[as --dtype]"
)
@click.option(
    "--page-size",
    "page_sizes",
    default=(16,),
    show_default=True,
    multiple=True,
    type=click.IntRange(min=1),
    help="Tokens a page; may be given several times.",
)
@click.option(
    "--mix",
    "mixes",
    multiple=True,
    metavar="GROUPS",
    help="A batch as COUNTxTOKENS+HISTORY,…; several times.  [default: 15 steps of serving]",
)
@click.option("--backend", type=click.Choice(("cpu", "triton", "cuda")), help="[default: best capable]")
@click.option("--device", default="cpu", show_default=True, type=click.Choice(("cpu", "cuda")))
@click.option(
    "--arch",
    type=click.Choice(("80", "86", "89", "90", "100", "103", "120")),
    help="List, and with --compile compile, for a GPU that is not at hand; measures nothing.",
)
@click.option("--sms", default=132, show_default=True, type=click.IntRange(min=1), help="Multiprocessors; with --arch.")
@click.option("--compile", is_flag=True, help="Compile GPU kernels first and leave out those that spill or do not fit.")
@click.option(
    "--budget-seconds",
    default=180.0,
    show_default=True,
    type=POSITIVE,
    metavar="S",
    help="About how long; what takes least comes first, keys that are left over are tuned by the next run.",
)
@click.option(
    "--table",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Where entries are kept.  [default: CHUNKATTN_TUNING, or the user's cache folder]",
)
@click.option("--again", is_flag=True, help="Tune keys that have an entry too.")
@click.option("--dry-run", is_flag=True, help="Say what would be measured.")
@click.option("--seed", default=0, show_default=True, help="Of the order of measurements.")
@click.option("--json", "as_json", is_flag=True, help="Print the JSON and nothing else.")
def kernels(arch: str | None, model: str | None, **options: object) -> None:
    """Chooses how attention is cut into work, by measuring.

    MODEL is a preset of chunkattn bench, or a Hugging Face config.json or its folder. What a backend could do is
    listed, what cuts the batches alike or cannot win by a simple model is left out, the rest is measured in interleaved
    rounds. A setting is kept where it beats the default by more than the noise, on fresh data, with the right answer;
    else the default is. Every key is saved as soon as it is done: after Ctrl-C the next run goes on from there.

    The exit status is 2 where keys are left over.
    """
    from chunkattn.cli.tune_kernels import KernelOptions, run_tune_kernels

    if model is not None:
        _refuse_unused(("q_heads", "kv_heads", "head_dim", "head_dim_v"), f"without MODEL only, got {model} too")
    if arch is None:
        _refuse_unused(("sms",), "with --arch only")
    with one_sentence(), plain_table_warnings():
        complete = run_tune_kernels(KernelOptions(model, arch=None if arch is None else int(arch), **options))  # type: ignore[arg-type]
    if not complete:
        raise click.exceptions.Exit(2)


@tune.command()
@click.argument("trace", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--slo-itl",
    required=True,
    type=POSITIVE,
    metavar="S",
    help="Most seconds between two tokens, 99th percentile.",
)
@click.option(
    "--slo-ttft",
    type=POSITIVE,
    metavar="S",
    help="Most seconds to the first token, 99th percentile.",
)
@click.option(
    "--margin",
    default=0.1,
    show_default=True,
    type=FiniteRange(min=0, max=1, max_open=True),
    help="Share of both that stays free.",
)
@click.option(
    "--decodes", default=16, show_default=True, type=click.IntRange(min=1), help="Requests decoding in every step."
)
@click.option(
    "--decode-context", type=click.IntRange(min=1), metavar="N", help="Tokens a decode reads.  [of the trace]"
)
@click.option(
    "--history", type=click.IntRange(min=0), metavar="N", help="Longest history before a chunk.  [p99 of the trace]"
)
@click.option(
    "--arrivals",
    default="azure-conv",
    show_default=True,
    type=ARRIVALS,
    help="Without TRACE: a synthetic process fitted to this public trace.",
)
@click.option("--requests", "num_requests", default=400, show_default=True, type=click.IntRange(min=2), metavar="N")
@click.option(
    "--length-scale", default=1.0, show_default=True, type=FiniteRange(min=0, min_open=True, max=1000), metavar="X"
)
@click.option(
    "--rate",
    type=POSITIVE,
    metavar="R",
    help="Arrivals a second of the replay.  [default: what keeps the recommended budget 70 % busy]",
)
@click.option("--seed", default=0, show_default=True, help="Of synthetic arrivals.")
@click.option("--tile", default=64, show_default=True, type=click.IntRange(min=1), help="Budgets are its multiples.")
@click.option("--model", default="smollm2", show_default=True, metavar="NAME|DIR", help="As in chunkattn demo.")
@click.option("--dtype", default="float32", show_default=True, type=click.Choice(("float32", "bfloat16", "float16")))
@click.option("--device", default="cpu", show_default=True, help="Where the model runs.")
@click.option("--backend", metavar="NAME", help="Attention backend.  [default: best capable]")
@click.option(
    "--longest",
    default=1024,
    show_default=True,
    type=click.IntRange(min=16),
    metavar="N",
    help="Most tokens of a measured step; no larger budget is looked at.",
)
@click.option(
    "--profile",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Recorded steps instead of measuring: a cost model (JSON), steps (CSV), or Vidur's layer profile (CSV).",
)
@click.option(
    "--save-profile",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Keep what was measured, for --profile.",
)
@click.option("--layers", type=click.IntRange(min=1), help="Of the model; for a layer profile.")
@click.option("--peak-flops", type=POSITIVE, metavar="F", help="Of a device, dense 16-bit; for a layer profile.")
@click.option("--peak-bandwidth", type=POSITIVE, metavar="B", help="Of a device, bytes/s; for a layer profile.")
@click.option(
    "--tensor-parallel", default=1, show_default=True, type=click.IntRange(min=1), help="For a layer profile."
)
@click.option(
    "--output",
    default=Path("chunkattn-tune-budget"),
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where budget.png and budget.json go.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the JSON and nothing else.")
def budget(
    slo_itl: float,
    slo_ttft: float | None,
    margin: float,
    layers: int | None,
    peak_flops: float | None,
    peak_bandwidth: float | None,
    tensor_parallel: int,
    trace: Path | None,
    profile: Path | None,
    **options: object,
) -> None:
    """Recommends a token budget for a latency objective.

    Fits a model of step times to steps measured now, or recorded in a profile; takes the smallest budget within 5 % of
    the best rate that meets the objective; replays TRACE (or synthetic arrivals) in the simulator to confirm it.

    The exit status is 2 where no budget meets the objective, or none does in the replay.
    """
    from chunkattn.cli.tune_budget import BudgetOptions, run_tune_budget
    from chunkattn.tuning.profile import Device
    from chunkattn.tuning.token_budget import Objective

    if trace is not None:
        _refuse_unused(("arrivals",), "without TRACE only")
    if profile is None:
        _refuse_unused(("layers", "peak_flops", "peak_bandwidth", "tensor_parallel"), "with --profile only")
    else:
        measuring = ("model", "dtype", "device", "backend", "longest", "save_profile")
        _refuse_unused(measuring, "without --profile only, which is not measured")
    with one_sentence(), plain_table_warnings():
        confirmed = run_tune_budget(
            BudgetOptions(
                objective=Objective(slo_itl, slo_ttft, margin),
                profiled=Device(layers, peak_flops, peak_bandwidth, tensor_parallel),
                trace=trace,
                profile=profile,
                **options,  # type: ignore[arg-type]
            )
        )
    if not confirmed:
        raise click.exceptions.Exit(2)

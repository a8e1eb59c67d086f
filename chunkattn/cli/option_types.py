"""What values options of several commands take."""

from __future__ import annotations

import click

POSITIVE = click.FloatRange(min=0, min_open=True)
# Synthetic processes of `chunkattn.simulation`, which is imported when a command runs.
ARRIVALS = click.Choice(("azure-conv", "azure-code", "mooncake", "sharegpt", "arxiv", "bwb"))

"""A comparison as one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from chunkattn.cli.serve_table import COLUMNS, findings, name_of, text_of
from chunkattn.simulation import Outcome

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;color:#1c2733;max-width:1100px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem;margin:0}h2{font-size:1.15rem;margin:2rem 0 .5rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;display:block;overflow-x:auto}
td,th{padding:.25rem .7rem;text-align:right;border-bottom:1px solid #e3e8ee;white-space:nowrap}
td:first-child,th:first-child{text-align:left}td.wide{white-space:normal;text-align:left}td.what{text-align:left;color:#5b6b7b}
img{max-width:100%}code{background:#f1f4f7;padding:.1rem .3rem;border-radius:3px;overflow-wrap:anywhere}
.note{color:#5b6b7b;font-size:.9rem}.best{font-weight:700}
@media(prefers-color-scheme:dark){body{background:#12181f;color:#dbe3ea}td,th{border-color:#2c3845}
code{background:#1f2933}img{background:#fff;border-radius:4px}.note{color:#93a3b3}}
"""
_CAPTIONS = {
    "steps": (
        "Who ran when",
        "A row a request, the first 30. Blue is its prompt, green its answer; a long prompt that runs whole beside an "
        "answer stretches that answer's next token. Red is the longest wait between two tokens of the requests shown.",
    ),
    "latency": (
        "How many waited how long",
        "For the first token, and between two tokens; the unlucky ones are at the bottom. Further left is better.",
    ),
    "tradeoff": (
        "Throughput against latency",
        "Further right and lower is better. While a worker keeps up, throughput is what the arrivals ask for: settings "
        "part to the right only where it does not.",
    ),
    "memory": (
        "Memory",
        "Pages of the KV cache in use over time, and the most memory that a step took beside weights and cache.",
    ),
}


def html_report(outcomes: Sequence[Outcome], facts: Mapping[str, Any], pictures: Mapping[str, bytes]) -> str:
    """The page.

    Args:
        outcomes: of the comparison.
        facts: what was run on what, by name.
        pictures: PNG by name, as `draw_all` gives them.
    """
    notes = list(dict.fromkeys(outcome.note for outcome in outcomes))
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>chunkattn serve-sim</title><style>{_STYLE}</style>",
        f"<h1>{escape(str(facts.get('trace', 'a trace')))} under {_count(outcomes)} settings</h1>",
        f"<p>{escape(_what_ran(outcomes, facts))}</p>",
        f"<p class=note>Steps: {escape('; '.join(notes))}.</p>",
        "<h2>The settings</h2>",
        _settings(outcomes),
        "<h2>In words</h2><ul>",
        *(f"<li>{escape(line)}</li>" for line in findings(outcomes)),
        "</ul>",
        "<h2>In numbers</h2>",
        _table(outcomes),
    ]
    for name, picture in pictures.items():
        data = base64.b64encode(picture).decode("ascii")
        title, caption = map(escape, _CAPTIONS[name])
        parts.append(f"<h2>{title}</h2><p>{caption}</p><img alt='{title}' src='data:image/png;base64,{data}'>")
    parts += ["<h2>How it was made</h2><table>"]
    parts += [
        f"<tr><td>{escape(str(name))}</td><td class=wide><code>{escape(str(value))}</code></td></tr>"
        for name, value in facts.items()
    ]
    parts.append("</table></html>")
    return "\n".join(parts) + "\n"


def _what_ran(outcomes: Sequence[Outcome], facts: Mapping[str, Any]) -> str:
    """The load in a sentence."""
    rates = ", ".join(f"{rate:.3g}" for rate in dict.fromkeys(outcome.rate for outcome in outcomes))
    tokens = " and ".join(f"{facts.get(f'{kind} tokens', 0):,} {kind} tokens" for kind in ("prompt", "output"))
    load = f"{facts.get('requests', 0):,} requests with {tokens} in all, {rates} a second"
    return f"{load}, of {facts.get('model', 'a model')}. Every setting gets the same requests at the same times."


def _count(outcomes: Sequence[Outcome]) -> int:
    return len({outcome.setting.name for outcome in outcomes})


def _table(outcomes: Sequence[Outcome]) -> str:
    """Figures as rows, runs as columns; under every run how its steps were timed."""
    rows = ["<table><tr><th></th>"]
    rows += [f"<th>{escape(name_of(outcome, outcomes))}</th>" for outcome in outcomes]
    rows.append("</tr>")
    for column in COLUMNS:
        values = [outcome.summary.get(column.key, math.nan) for outcome in outcomes]
        known = [value for value in values if not math.isnan(value)]
        if not known:
            continue  # nobody asked
        wanted = {"less": min, "more": max}.get(column.better)
        best = wanted(known) if wanted and len(set(known)) > 1 else None
        rows.append(f"<tr><td>{escape(column.title)}</td>")
        rows += [
            f"<td{' class=best' if value == best else ''}>{escape(text_of(value, column.unit))}</td>"
            for value in values
        ]
        rows.append(f"<td class=what>{escape(column.meaning)}</td></tr>")
    rows.append("<tr><td>steps</td>" + "".join(f"<td>{escape(outcome.executor)}</td>" for outcome in outcomes))
    rows.append("</tr><tr><td>refused</td>" + "".join(f"<td>{outcome.num_refused}</td>" for outcome in outcomes))
    rows.append("</tr></table>")
    return "".join(rows)


def _settings(outcomes: Sequence[Outcome]) -> str:
    rows = ["<table><tr><th>name</th><th>rule</th><th>from</th></tr>"]
    for setting in {outcome.setting.name: outcome.setting for outcome in outcomes}.values():
        rows.append(
            f"<tr><td>{escape(setting.name)}</td><td class=wide>{escape(setting.rule)}</td>"
            f"<td class=wide>{escape(setting.source)}</td></tr>"
        )
    return "".join(rows) + "</table>"

"""The report's head and its charts: what they say of records whose figures are known."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from test_bench_scaling import family

from chunkattn.bench import page, svg
from chunkattn.bench.record import Measured, Record, Sample

SVG = "{http://www.w3.org/2000/svg}"


def measured(name: str, seconds: float) -> Measured:
    return Measured(name, name, "measured", samples=[Sample(seconds, seconds, 1, True)])


def record(peers: list[float]) -> Record:
    """Cells of 2, 4, … ms at floors of 1, 2, … ms, with a peer's time each and one that is not installed."""
    cells = family([0.002 * 2**number for number in range(len(peers))])
    for cell, seconds in zip(cells, peers, strict=True):
        cell.providers += [
            measured("vllm-cpu", seconds),
            Measured("llama-cpp", "llama.cpp", "missing", "not here; pip install it"),
        ]
    return Record(cells=cells)


def test_the_headline_counts_who_is_ahead() -> None:
    html = page.render(record([0.004, 0.00404, 0.004]))
    assert "3 cases; ours takes between 2.00 and 2.00 times the machine's floor" in html
    assert "ahead in 1 of 3, level within 3% in 1, behind in 1: 0.50× to 2.00×, 1.01× in the middle" in html
    for kind, lead in (("lead", "2.00"), ("level", "1.01"), ("behind", "0.50")):
        assert f'<td class="{kind}">{lead}×</td>' in html


def test_who_is_missing_is_said_once_with_the_command() -> None:
    html = page.render(record([0.004, 0.004, 0.004]))
    assert html.count("not here; pip install it") == 1
    assert "<td>llama.cpp</td><td>0 of 3</td>" in html
    assert "<td>vllm-cpu</td><td>3 of 3</td>" in html


def test_without_peers_there_is_no_column_of_them() -> None:
    assert "best peer" not in page.render(Record(cells=family([0.1, 0.2, 0.3]))).split("How to read")[0]


def test_bars_far_longer_than_the_rest_are_cut_and_look_it() -> None:
    rows = [svg.Bar("a", 1.0, "#000", ""), svg.Bar("b", 3.9, "#000", ""), svg.Bar("c", 100.0, "#000", "")]
    root = ElementTree.fromstring(svg.bars(rows, mark=0.5, mark_label="floor"))
    widths = [float(rectangle.attrib["width"]) for rectangle in root.iter(f"{SVG}rect")]
    assert widths[1] / widths[0] == 3.9
    assert widths[2] / widths[0] == 4.0
    assert len(list(root.iter(f"{SVG}path"))) == 1


def test_names_that_would_touch_are_joined() -> None:
    line = svg.Series("limit", "#c00", [(1.0, 1.0), (1000.0, 1.0)], marks=False)
    places = {10.0: "W1", 10.5: "W4", 900.0: "W2"}
    root = ElementTree.fromstring(svg.log_plot([line], x_label="x", y_label="y", places=places))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert "W1, W4" in texts
    assert "W2" in texts


def test_the_roof_is_flat_right_of_the_bend_also_where_no_case_is_left_of_it() -> None:
    cells = family([0.1, 0.2, 0.3], bound="compute")
    for cell in cells:
        cell.flops = 2000 * cell.bytes  # the bend is at 1,000
    html = page.render(Record(cells=cells))
    (roof,) = re.findall(r'<polyline points="([^"]*)"[^>]*stroke="#c00"', html.split("Scaling")[0])
    points = [tuple(map(float, point.split(","))) for point in roof.split()]
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert points[0][1] > points[1][1] == points[2][1]  # pixels count from the top


def test_ticks_are_at_the_sizes_asked_for() -> None:
    line = svg.Series("limit", "#c00", [(1.0, 7.0), (32.0, 7.0)])
    root = ElementTree.fromstring(svg.log_plot([line], x_label="x", y_label="y", x_ticks=[1, 4, 16, 32]))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert [text for text in texts if text in ("1", "4", "16", "32")] == ["1", "4", "16", "32"]

"""Several builders at once, and builders that are killed (d35)."""

from __future__ import annotations

import os
import signal
import time

import pytest
from workshop import Workshop, kill_all

from chunkattn.build import builder

SCALE = "scale-sm80"
SECONDS = 300  # no wait here is long, unless the machine stands still


def wait_for(condition, what: str) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, f"waited {SECONDS} s for {what}"
        time.sleep(0.01)


def finish(process) -> str:
    output, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, errors
    return output


def test_two_processes_build_a_variant_once(shop: Workshop):
    shop.tell(seconds=0.5)
    processes = [shop.start(SCALE) for _ in range(2)]
    assert [finish(process).splitlines()[-1] for process in processes] == [f"{SCALE} half"] * 2
    assert shop.compiled() == 1
    assert len(shop.published()) == 1
    assert shop.scratch() == []


def test_d35_a_killed_build_leaves_nothing_and_the_next_two_build_once(shop: Workshop, listed):
    shop.tell(seconds=60)
    first = shop.start(SCALE)
    wait_for(lambda: shop.compiled() == 1, "the compiler")
    kill_all(first)
    assert shop.published() == []
    shop.tell(seconds=0.3)
    processes = [shop.start(SCALE) for _ in range(2)]
    for process in processes:
        assert f"{SCALE} half" in finish(process)
    assert shop.compiled() == 2
    assert len(shop.published()) == 1
    assert shop.scratch() == []


def test_compilers_outlive_a_killed_builder_and_are_waited_for(shop: Workshop):
    """kill -9 of the Python process alone: its ninja goes on, nobody sweeps its folder away, its result is taken."""
    shop.tell(seconds=2)
    first = shop.start(SCALE)
    wait_for(lambda: shop.compiled() == 1, "the compiler")
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert f"{SCALE} half" in finish(shop.start(SCALE))
    assert shop.compiled() == 1
    wait_for(lambda: shop.log()[-1] == f"end {SCALE}.so", "the compiler's end")


def test_compilers_of_all_builders_take_turns(shop: Workshop):
    shop.tell(seconds=0.3)
    processes = [
        shop.start("scale-sm80", CHUNKATTN_BUILD_JOBS="1"),
        shop.start("scale-sm90a", CHUNKATTN_BUILD_JOBS="1"),
    ]
    for process in processes:
        finish(process)
    log = shop.log()
    assert len(log) == 4
    assert [line.split()[0] for line in log] == ["begin", "end"] * 2


def test_a_long_build_says_how_far_it_is(shop: Workshop, listed, monkeypatch):
    monkeypatch.setattr(builder, "REPORT_SECONDS", 0.05)
    shop.tell(seconds=0.5)
    said: list[str] = []
    builder.build([listed[SCALE], listed["scale-sm90a"]], report=said.append)
    assert said[0].startswith("building scale-sm80, scale-sm90a")
    assert any(line.startswith("0 of 2 built after ") for line in said)


def test_an_interrupted_build_ends_its_compilers(shop: Workshop, listed, monkeypatch):
    def interrupt(line: str) -> None:
        if " built after " in line:
            raise KeyboardInterrupt

    monkeypatch.setattr(builder, "REPORT_SECONDS", 0.3)
    shop.tell(seconds=600)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        builder.build([listed[SCALE]], report=interrupt)
    assert time.monotonic() - started < SECONDS
    assert shop.published() == []
    assert shop.scratch() == []


@pytest.mark.parametrize(
    ("names", "said"),
    [(["a"], "a"), (["a", "b", "c", "d"], "a, b, c, d"), (list("abcdef"), "a, b, c, d and 2 more")],
)
def test_a_report_of_a_long_list_is_a_line(names, said):
    assert builder._some(names) == said

"""The engine's loop and the times users feel."""

from __future__ import annotations

import itertools

import pytest
from hash_model import HashModel

from chunkattn.scheduler import Request, Scheduler, SchedulerConfig
from chunkattn.serving import Engine, request_times


def make_engine() -> Engine:
    ticks = itertools.count()
    config = SchedulerConfig(token_budget=8, max_num_seqs=4, page_size=4, num_pages=32)
    return Engine(Scheduler(config), HashModel(32, 4), clock=lambda: float(next(ticks)))


def test_times_follow_the_steps() -> None:
    engine = make_engine()
    engine.add_request(Request("chat", [1, 2, 3], 4))  # clock 0
    engine.step()  # 1…2: first token of chat
    engine.add_request(Request("long", list(range(14)), 1))  # clock 3
    engine.run()  # 4…5, 6…7: chunks of 7; 8…9: last token of chat
    times = request_times(engine.steps)
    assert times["chat"].token_times == (2.0, 5.0, 7.0, 9.0)
    assert times["chat"].ttft == 2.0
    assert times["chat"].tpot == pytest.approx(7 / 3)
    assert times["chat"].longest_stall == 3.0
    assert times["long"].ttft == 4.0
    assert times["long"].tpot is None
    assert times["long"].longest_stall == 0.0
    assert [step.batch.num_tokens for step in engine.steps] == [3, 8, 8, 1]


def test_step_without_work_is_refused() -> None:
    with pytest.raises(RuntimeError, match="expected a waiting or running request"):
        make_engine().step()

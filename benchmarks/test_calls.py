"""Call overhead, plan and cache writes under pytest-benchmark: the tasks of `chunkattn bench micro`."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from chunkattn.bench import micro

TASKS = {task.key: task for task in micro.all_tasks()}


@pytest.mark.parametrize("key", TASKS)
def test_call(benchmark: BenchmarkFixture, key: str) -> None:
    benchmark(TASKS[key].call)

"""What the scheduler costs a chunk: pure Python, 100 running requests, decodes after their prompts.

    python benchmarks/scheduler_cost.py --output results/DATE-MACHINE-scheduler.json

CPU time, since it goes on only while the scheduler does; the median over steps in which all requests take part.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import time
from pathlib import Path

from chunkattn.bench import machine
from chunkattn.scheduler import Request, Scheduler, SchedulerConfig
from chunkattn.serving import StepMetadata

REQUESTS = 100
STEPS = 400


def costs(policy: str) -> dict[str, float]:
    """Microseconds a chunk of the scheduler alone, and of the step's tensors."""
    scheduler = Scheduler(SchedulerConfig(512, REQUESTS, 16, 6000, policy=policy))
    for number in range(REQUESTS):
        tokens = [(number * 37 + position) % 500 for position in range(100)]
        scheduler.add_request(Request(str(number), tokens, STEPS, client_id="ab"[number % 2]))
    scheduling, tensors = [], []
    for _ in range(STEPS):
        start = time.process_time()
        batch = scheduler.schedule()
        scheduled = time.process_time()
        StepMetadata.of(batch, 16)
        made = time.process_time()
        sampled = {chunk.request.request_id: 1 for chunk in batch.chunks if chunk.samples}
        begin = time.process_time()
        scheduler.update(batch, sampled)
        updated = time.process_time()
        if len(batch.chunks) == REQUESTS:
            scheduling.append((scheduled - start + updated - begin) / REQUESTS)
            tensors.append((made - scheduled) / REQUESTS)
    return {
        "schedule_and_update_us": round(1e6 * statistics.median(scheduling), 3),
        "step_tensors_us": round(1e6 * statistics.median(tensors), 3),
        "steps": len(scheduling),
    }


def main() -> None:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    found = {policy: costs(policy) for policy in ("fcfs", "sjf", "fair")}
    for policy, cost in found.items():
        both = cost["schedule_and_update_us"] + cost["step_tensors_us"]
        print(f"{policy}: {cost['schedule_and_update_us']:.2f} µs a chunk, with the step's tensors {both:.2f}")
    if given.output is not None:
        date = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        command = machine.command("python benchmarks/scheduler_cost.py")
        facts = {"command": command, "date": date, "machine": machine.describe()}
        given.output.write_text(
            json.dumps({**facts, "versions": machine.versions(), "per_chunk": found}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()

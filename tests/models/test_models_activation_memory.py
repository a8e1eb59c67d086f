"""The peak of live tensors, exactly."""

from __future__ import annotations

import torch

from chunkattn.models.activation_memory import peak_activation_bytes

CPU = torch.device("cpu")
MIB = 1 << 20


def test_counts_what_lives_at_once() -> None:
    def run() -> None:
        a = torch.empty(MIB, dtype=torch.uint8)
        b = torch.empty(2 * MIB, dtype=torch.uint8)
        del a
        c = torch.empty(3 * MIB, dtype=torch.uint8)  # b and c: 5
        del b, c
        torch.empty(4 * MIB, dtype=torch.uint8)

    assert peak_activation_bytes(run, CPU) == 5 * MIB


def test_views_and_in_place_results_cost_nothing() -> None:
    before = torch.ones(MIB)

    def run() -> None:
        view = before.view(2, -1)[0].mul_(2.0)
        copy = view.clone()
        copy.view(4, -1).add_(1.0).t().neg_()

    assert peak_activation_bytes(run, CPU) == MIB // 2 * 4


def test_what_the_run_keeps_is_counted_until_the_end() -> None:
    kept = []

    def run() -> None:
        for _ in range(3):
            kept.append(torch.empty(MIB, dtype=torch.uint8))

    assert peak_activation_bytes(run, CPU) == 3 * MIB

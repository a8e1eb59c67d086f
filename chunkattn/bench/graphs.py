"""A call as a CUDA graph: what a step costs when nothing is launched from Python."""

from __future__ import annotations

import torch

from chunkattn.bench.providers.base import Call


def captured(call: Call) -> Call:
    """Captures a prepared call and returns its replay.

    Raises:
        RuntimeError: the provider syncs or allocates in a way that cannot be captured.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()

    def replay() -> torch.Tensor:
        graph.replay()
        return out

    return replay

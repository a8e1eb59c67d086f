"""Peak memory of a forward pass: what it allocates beyond weights and cache."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def peak_activation_bytes(run: Callable[[], object], device: torch.device) -> int:
    """Runs something and measures the most memory it held at once.

    On a GPU the allocator counts. Elsewhere every tensor an operator returns is followed until its storage dies, which
    is exact for tensors and slows the run: use a pass of its own, not one that is timed. Memory that a native kernel
    takes without torch is not seen; the decoder hands its kernels their workspace as a tensor, so that it is.

    Args:
        run: what to measure.
        device: where it runs.

    Returns:
        Bytes above what was allocated before.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = int(torch.cuda.memory_allocated(device))
        run()
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device)) - before
    storages = _LiveStorages()
    with storages:
        run()
    return storages.peak


class _LiveStorages(TorchDispatchMode):
    """Adds up the storages that operators return while they live."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._now = 0
        self._alive: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        # An output on an input's storage is a view or was written in place: nothing new, whoever owns the storage.
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in given:
                self._follow(tensor.untyped_storage())
        return result

    def _follow(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._alive:
            return

        def died(_: object) -> None:
            del self._alive[key]
            self._now -= size

        self._alive[key] = weakref.ref(storage, died)
        self._now += size
        self.peak = max(self.peak, self._now)

"""Throws mutated arguments at every op; run as a process of its own, so that a crash is seen as one.

    python fuzz_boundary.py SEED COUNT

Prints the number of calls that were accepted and refused. A call may return or raise one of ``REFUSALS``; both
backends must agree on which. The last line on stderr before a crash names the call to repeat.
"""

from __future__ import annotations

import faulthandler
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from op_samples import samples
from torch import Tensor

REFUSALS = (ValueError, TypeError, RuntimeError, NotImplementedError)
DTYPES = [
    torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64,
    torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64,
]  # fmt: skip
NUMBERS = [0, -1, 1, 2, 3, 7, 16, 31, 2**31 - 1, -(2**31), 2**31, 2**62, -(2**62)]


def mutate_tensor(rng: random.Random, x: Tensor) -> Tensor | None:
    choice = rng.randrange(15)
    if choice == 0:
        return None
    if choice == 1:
        return x.to(rng.choice(DTYPES))
    if choice == 2:
        return x.unsqueeze(rng.randrange(x.dim() + 1))
    if choice == 3 and x.dim():
        return x.select(rng.randrange(x.dim()), 0) if all(x.shape) else x
    if choice == 4 and x.dim():
        dim = rng.randrange(x.dim())
        return x.narrow(dim, 0, rng.randint(0, x.shape[dim]))
    if choice == 5 and x.dim() > 1:
        a, b = rng.sample(range(x.dim()), 2)
        return x.transpose(a, b)
    if choice == 6:
        return x.to("meta")
    if choice == 7 and x.dim():
        return x.repeat_interleave(2, rng.randrange(x.dim()))
    if choice == 8 and x.dim():
        dim = rng.randrange(x.dim())
        return x.repeat_interleave(2, dim)[(slice(None),) * dim + (slice(None, None, 2),)]
    if choice == 9 and x.dim() and x.numel():
        # Sizes beyond any memory, over one element.
        sizes = [2**20, 2**31, 2**40] if x.is_floating_point() else [2**16]
        return x.flatten()[:1].expand(rng.choice(sizes)).view(1, -1).squeeze(0)
    if choice == 10 and x.dim() and x.numel():
        dim = rng.randrange(x.dim())
        shape = list(x.shape)
        shape[dim] = rng.choice([0, 1, 2**31, 2**45] if x.is_floating_point() else [0, 1, 2**10])
        return x.narrow(dim, 0, 1).expand(shape)
    if choice == 11 and not x.is_floating_point() and x.numel() and x.dtype in (torch.int32, torch.int64):
        y = x.clone()
        y.view(-1)[rng.randrange(x.numel())] = rng.choice(
            [n for n in NUMBERS if abs(n) < 2**31 or x.dtype == torch.int64]
        )
        return y
    if choice == 12 and x.is_floating_point() and x.numel() and x.element_size() > 1:
        y = x.clone(memory_format=torch.contiguous_format)
        y.view(-1)[rng.randrange(x.numel())] = rng.choice([float("nan"), float("inf"), -float("inf"), 1e38, 0.0])
        return y
    if choice == 13 and x.numel():
        storage = torch.zeros(x.numel() + 1, dtype=x.dtype)
        return storage[1:].view(x.shape)
    if choice == 14 and x.dtype in (torch.int32, torch.int64):
        return torch.randint(-3, 50, x.shape).to(x.dtype)
    return x


def mutate(rng: random.Random, value):
    if isinstance(value, Tensor):
        # A second change of a tensor of huge size would need its memory.
        return value if value.numel() > 2**24 else mutate_tensor(rng, value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice(NUMBERS)
    if isinstance(value, float):
        return rng.choice([float("nan"), float("inf"), -1.0, 0.0, 1e38, 1e-38, 2.0])
    if value is None:
        return rng.choice([None, None, torch.zeros(3), torch.zeros(2, 2, dtype=torch.int32), torch.empty(0)])
    return value


def copied(arguments):
    """Fresh tensors with the same strides; expanded and meta ones as they are."""

    def copy(x):
        if not isinstance(x, Tensor) or x.device.type == "meta" or 0 in x.stride():
            return x
        spread = torch.zeros(x.untyped_storage().nbytes(), dtype=torch.uint8)
        spread.copy_(torch.empty(0, dtype=torch.uint8).set_(x.untyped_storage()))
        return torch.empty(0, dtype=x.dtype).set_(spread.untyped_storage(), x.storage_offset(), x.shape, x.stride())

    return [copy(x) for x in arguments]


def describe(value) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype}{tuple(value.shape)}{value.stride()}{value.device}"
    return repr(value)


def outcome(op, arguments) -> str:
    try:
        op(*arguments)
    except REFUSALS as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def main(seed: int, count: int) -> None:
    faulthandler.enable()
    rng = random.Random(seed)
    torch.manual_seed(seed)
    pool = list(samples(backend="cpu"))
    accepted = refused = 0
    for number in range(count):
        name, op, arguments = rng.choice(pool)
        arguments = list(arguments)
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            index = rng.randrange(len(arguments) - 1)
            value = mutate(rng, arguments[index])
            if "pages" in name and isinstance(value, Tensor) and value.numel() > 2**24:
                continue  # a legal request to copy more than any memory
            # torch itself turns None into an undefined tensor where one is required; the public functions refuse it.
            if value is not None or isinstance(op._schema.arguments[index].type, torch.OptionalType):
                arguments[index] = value
        print(f"call {number} of seed {seed}: {name}: {', '.join(map(describe, arguments))}", file=sys.stderr)
        results = [outcome(op, copied([*arguments[:-1], backend])) for backend in ("cpu", "reference")]
        verdicts = [result == "accepted" for result in results]
        if verdicts[0] != verdicts[1] and "pages" not in name:  # PyTorch moves pages of any dtype
            print(f"call {number}: cpu {results[0]!r}, reference {results[1]!r}")
            print(f"  {name}: {', '.join(map(describe, arguments))}")
            raise SystemExit(3)
        accepted += verdicts[0]
        refused += not verdicts[0]
    print(accepted, refused)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

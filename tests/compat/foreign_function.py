"""What must come of each argument of a foreign function: a change, a refusal by name, an error, or nothing at all."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import chunkattn
from chunkattn.testing import assert_rows_close

Arguments = dict[str, Any]
CHANGES = "what comes out, or what the call writes, differs"
REFUSED = "UnsupportedError that begins with the name"
CHECKED = "ValueError or TypeError that begins with the name"
MISFITS = "an error about what no longer fits it"
HINT = "accepted, and nothing differs"


def ints(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


def seeded(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Change:
    """One argument's other value.

    Attributes:
        value: what it is changed to; a function of the other arguments makes it of them.
        effect: what must come of it.
        beside: further arguments of both calls, the changed and the unchanged one.
        sentence: regular expression of the error of a misfit.
    """

    value: Any
    effect: str = CHANGES
    beside: Arguments = field(default_factory=dict)
    sentence: str | None = None


def refused(value, beside=None):
    return Change(value, REFUSED, beside or {})


def misfits(value, sentence):
    return Change(value, MISFITS, sentence=sentence)


def doubled(*names):
    return {name: Change(lambda a, name=name: a[name] * 2) for name in names}


@dataclass(frozen=True)
class Function:
    """A foreign function.

    Attributes:
        call: runs it with arguments by name; returns what comes out.
        owner: what has the arguments: a function, or a class with its constructor, `plan` and `run`.
        signature: its names, in order; those of a run that `plan` has too begin with run_.
        base: fresh arguments of the unchanged call.
        changes: of every name.
    """

    call: Callable[[Arguments], Any]
    owner: Any
    signature: str
    base: Callable[[], Arguments]
    changes: dict[str, Change]

    @classmethod
    def plain(cls, function, signature, base, changes):
        return cls(lambda arguments: function(**arguments), function, signature, base, changes)

    @classmethod
    def wrapper(cls, wrapper, signature, base, changes):
        """Constructor, plan and run in one call: their names are told apart by the signatures."""

        def call(arguments):
            left = dict(arguments)

            def taken(method):
                names = inspect.signature(method).parameters
                return {name: left.pop(name) for name in list(left) if name in names}

            instance = wrapper(**taken(wrapper.__init__))
            again = {name[4:]: left.pop(name) for name in list(left) if name.startswith("run_")}
            instance.plan(**taken(wrapper.plan))
            return instance.run(**taken(wrapper.run), **again)

        return cls(call, wrapper, signature, base, changes)

    def names(self):
        return self.signature.split()

    def run(self, change, **changed):
        """(what came out, what the call wrote into its own arguments)."""
        arguments = {**self.base(), **change.beside, **changed}
        arguments = {key: x.clone() if isinstance(x, torch.Tensor) else x for key, x in arguments.items()}
        given = [x for key, x in arguments.items() if isinstance(x, torch.Tensor) and key != "float_workspace_buffer"]
        before = [x.clone() for x in given]
        result = self.call(arguments)
        out = [result] if isinstance(result, torch.Tensor) else [x for x in result or () if isinstance(x, torch.Tensor)]
        return out, [x for x, old in zip(given, before) if not torch.equal(x.view(torch.uint8), old.view(torch.uint8))]


def cases(functions: dict[str, Function]) -> list[tuple[str, str]]:
    """(function, argument) of every recorded name."""
    return [(function, name) for function, facts in functions.items() for name in facts.names()]


def check_argument(function: Function, name: str) -> None:
    """Fails unless what is recorded of the argument comes of it."""
    change, own_name = function.changes[name], name.removeprefix("run_")
    value = change.value({**function.base(), **change.beside}) if callable(change.value) else change.value
    if change.effect == REFUSED:
        with pytest.raises(chunkattn.UnsupportedError, match=rf"^{own_name}: "):
            function.run(change, **{name: value})
    elif change.effect == CHECKED:
        with pytest.raises((ValueError, TypeError), match=rf"^{own_name}: "):
            function.run(change, **{name: value})
    elif change.effect == MISFITS:
        with pytest.raises((ValueError, TypeError, RuntimeError), match=rf"^{change.sentence}"):
            function.run(change, **{name: value})
    else:
        plain, other = function.run(change), function.run(change, **{name: value})
        if same(plain[0], other[0]) and same(plain[1], other[1]):
            assert change.effect == HINT, f"{name}: nothing differs"
        else:
            assert change.effect == CHANGES, f"{name}: expected a hint, but what comes out differs"


def check_names(function: Function) -> None:
    """Fails unless every recorded name is one of the owner's."""
    owner = function.owner
    methods = [owner.__init__, owner.plan, owner.run] if inspect.isclass(owner) else [owner]
    taken = {name for method in methods for name in inspect.signature(method).parameters}
    unknown = {name.removeprefix("run_") for name in function.names()} - taken
    assert not unknown, f"{owner.__name__}: {sorted(unknown)} are no arguments of it"


def same(some: Iterable[torch.Tensor], others: Iterable[torch.Tensor]) -> bool:
    """Whether two lists of tensors are equal: integers exactly, rows by the row rule."""
    some, others = list(some), list(others)
    if [(x.shape, x.dtype) for x in some] != [(x.shape, x.dtype) for x in others]:
        return False
    try:
        for x, y in zip(some, others):
            if not x.is_floating_point():
                if not torch.equal(x, y):
                    return False
            else:
                assert_rows_close(x, y.double())
    except AssertionError:
        return False
    return True

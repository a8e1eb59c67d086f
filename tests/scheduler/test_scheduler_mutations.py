"""Every rule of the scheduler is held by a test: break it, and the test named beside it fails."""

from __future__ import annotations

import inspect

import pytest
from scheduler_faults import FAULTS, Fault


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_noticed(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    fault.killer(*fault.arguments)  # right as it stands
    source = inspect.getsource(fault.method)
    assert source.count(fault.right) == 1, "the fault's text is not in the method exactly once"
    code = compile("class Wrong:\n" + source.replace(fault.right, fault.wrong), f"<{fault.name}>", "exec")
    module, namespace = fault.method.__globals__, {}
    exec(code, module, namespace)
    owner, name = fault.method.__qualname__.split(".")
    monkeypatch.setattr(module[owner], name, vars(namespace["Wrong"])[name])
    with pytest.raises((AssertionError, ValueError, RuntimeError, LookupError, AttributeError, pytest.fail.Exception)):
        fault.killer(*fault.arguments)


def test_the_list_is_long_enough() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 18

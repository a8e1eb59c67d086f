"""Every environment variable that chunkattn reads, in one place. Bad values raise.

==================== =========================== ====================================================
variable             values                      meaning
==================== =========================== ====================================================
CHUNKATTN_DEBUG      0, 1                        check lengths and page tables on GPUs too (a host sync);
                                                 on the CPU they are always checked
CHUNKATTN_BACKEND    a backend's name            use this backend where a call names none
CHUNKATTN_ISA        avx512bf16, avx512, avx2,   instruction set of the cpu backend, instead of the
                     portable                    best one this processor has
CHUNKATTN_VLLM_SO    a file                      vLLM's CPU op library (_C.abi3.so), a peer in benchmarks
==================== =========================== ====================================================

The variables are read once, when this module is imported.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

ISAS = ("avx512bf16", "avx512", "avx2", "portable")
BACKENDS = ("reference", "cpu", "triton", "cuda")


@dataclass(frozen=True)
class Settings:
    debug: bool = False
    backend: str | None = None
    isa: str | None = None
    vllm_library: str | None = None


def _choice(name: str, values: tuple[str, ...]) -> str | None:
    text = os.environ.get(name)
    if text is None or text == "":
        return None
    if text not in values:
        raise ValueError(f"{name}: expected one of {', '.join(values)}, got {text!r}")
    return text


def read() -> Settings:
    """Reads the environment.

    Raises:
        ValueError: a variable has a value outside its list.
    """
    return Settings(
        debug=_choice("CHUNKATTN_DEBUG", ("0", "1")) == "1",
        backend=_choice("CHUNKATTN_BACKEND", BACKENDS),
        isa=_choice("CHUNKATTN_ISA", ISAS),
        vllm_library=os.environ.get("CHUNKATTN_VLLM_SO") or None,
    )


SETTINGS = read()

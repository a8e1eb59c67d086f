"""Every environment variable that chunkattn reads, in one place. Bad values raise where a setting is first used.

==================== =========================== ====================================================
variable             values                      meaning
==================== =========================== ====================================================
CHUNKATTN_DEBUG      0, 1                        check lengths, page tables and scales on GPUs too (a host sync);
                                                 on the CPU they are always checked
CHUNKATTN_BACKEND    a backend's name            use this backend where a call names none
CHUNKATTN_ISA        avx512bf16, avx512fma,      kernels of the cpu backend, instead of the best ones that
                     avx512, avx2, portable      this processor has; avx512fma: the instructions of
                                                 avx512bf16, but products of floats (chosen on Intel)
CHUNKATTN_CACHE      a folder                    where GPU kernels built on this machine are kept
                                                 (default: chunkattn in the user's cache folder)
CHUNKATTN_TUNING     a file, off                 the table of measured settings; none with "off", not the shipped
                                                 one either (default: tuning.json in the user's cache folder)
CHUNKATTN_BUILD_JOBS a positive integer          compilers at once, instead of what processors and memory allow
CHUNKATTN_VLLM_SO    a file                      vLLM's CPU op library (_C.abi3.so), a peer in benchmarks
CHUNKATTN_GGML_LIB   a folder                    ggml's libraries (libggml-cpu.so, …), a peer in benchmarks
==================== =========================== ====================================================

The variables are read once, when this module is imported; a command refuses bad values before it begins.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import NoReturn, cast

ISAS = ("avx512bf16", "avx512fma", "avx512", "avx2", "portable")
BACKENDS = ("reference", "cpu", "triton", "cuda")


@dataclass(frozen=True)
class Settings:
    debug: bool = False
    backend: str | None = None
    isa: str | None = None
    cache: str | None = None
    tuning: str | None = None
    build_jobs: int | None = None
    vllm_library: str | None = None
    ggml_library: str | None = None


def _choice(name: str, values: tuple[str, ...]) -> str | None:
    text = os.environ.get(name)
    if text is None or text == "":
        return None
    if text not in values:
        raise ValueError(f"{name}: expected one of {', '.join(values)}, got {text!r}")
    return text


def _count(name: str) -> int | None:
    text = os.environ.get(name)
    if text is None or text == "":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{name}: expected a positive integer, got {text!r}")
    return int(text)


def read() -> Settings:
    """Reads the environment.

    Raises:
        ValueError: a variable has a value outside its list.
    """
    return Settings(
        debug=_choice("CHUNKATTN_DEBUG", ("0", "1")) == "1",
        backend=_choice("CHUNKATTN_BACKEND", BACKENDS),
        isa=_choice("CHUNKATTN_ISA", ISAS),
        cache=os.environ.get("CHUNKATTN_CACHE") or None,
        tuning=os.environ.get("CHUNKATTN_TUNING") or None,
        build_jobs=_count("CHUNKATTN_BUILD_JOBS"),
        vllm_library=os.environ.get("CHUNKATTN_VLLM_SO") or None,
        ggml_library=os.environ.get("CHUNKATTN_GGML_LIB") or None,
    )


class _Refused:
    """In place of settings that could not be read: a command is imported all the same and says so; any use raises."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __getattr__(self, name: str) -> NoReturn:
        raise ValueError(self._reason)


def _read_or_refuse() -> Settings:
    try:
        return read()
    except ValueError as error:
        return cast(Settings, _Refused(str(error)))


SETTINGS = _read_or_refuse()

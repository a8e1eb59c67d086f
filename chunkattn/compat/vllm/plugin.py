"""The entry point ``vllm.general_plugins``: makes chunkattn vLLM's attention backend CUSTOM."""

from __future__ import annotations

from typing import Any

from chunkattn.compat.versions import VersionRange

BACKEND = "chunkattn.compat.vllm.backend.ChunkAttentionBackend"
VERSIONS = VersionRange("vllm", first=(0, 32), end=(0, 33), extra="vllm")


def register() -> None:
    """Registers the backend; does nothing but say why where vLLM's version is not one of `VERSIONS`.

    vLLM calls this in each of its processes, whether the backend will be used or not, so that it never raises for a
    version.
    """
    from chunkattn.extras import require

    installed = require("vllm", extra="vllm", purpose="an attention backend for vLLM")
    from vllm.logger import init_logger
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    problem = VERSIONS.problem(installed.__version__)
    if problem is not None:
        # vLLM shows the messages of loggers under its own name only.
        init_logger("vllm.chunkattn").warning("chunkattn is not registered as an attention backend: %s", problem)
        return
    register_backend(AttentionBackendEnum.CUSTOM, BACKEND)
    if current_platform.is_cpu():
        _let_the_cpu_choose(type(current_platform), AttentionBackendEnum.CUSTOM)


def _let_the_cpu_choose(platform: Any, custom: Any) -> None:
    """Makes the CPU platform take CUSTOM where it is asked for; by itself it knows only its own backend."""
    theirs = platform.get_attn_backend_cls
    if getattr(theirs, "asks_chunkattn", False):
        return

    def get_attn_backend_cls(cls: Any, selected_backend: Any, attn_selector_config: Any, num_heads: Any = None) -> str:
        if selected_backend is not custom:
            return str(theirs(selected_backend, attn_selector_config, num_heads))
        reasons = custom.get_class().validate_configuration(device_capability=None, **attn_selector_config._asdict())
        if reasons:
            raise ValueError(f"attention backend CUSTOM (chunkattn) can't serve this model: {', '.join(reasons)}")
        return str(custom.get_path())

    get_attn_backend_cls.asks_chunkattn = True  # type: ignore[attr-defined]
    platform.get_attn_backend_cls = classmethod(get_attn_backend_cls)

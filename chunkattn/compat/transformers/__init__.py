"""Hugging Face transformers' attention served by chunkattn.

After `register` a model takes it by name, for ``generate`` and for continuous batching alike::

    from chunkattn.compat import transformers as chunkattn_transformers

    chunkattn_transformers.register()
    model = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="chunkattn")
"""

from __future__ import annotations

from typing import Any

from chunkattn.compat.versions import VersionRange

NAME = "chunkattn"
VERSIONS = VersionRange("transformers", first=(5, 19), end=(5, 20), extra="transformers")

__all__ = ["NAME", "VERSIONS", "register"]


def register() -> None:
    """Makes ``attn_implementation="chunkattn"`` known to transformers; calling it again changes nothing.

    Raises:
        ImportError: transformers is not installed, or its version is not one of `VERSIONS`.
    """
    from chunkattn.extras import require

    installed = require("transformers", extra="transformers", purpose="attention for Hugging Face models")
    VERSIONS.check(installed.__version__)
    from transformers import AttentionInterface, AttentionMaskInterface

    from chunkattn.compat.transformers.attention import attention_forward
    from chunkattn.compat.transformers.key_spans import key_spans

    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, key_spans)
    _let_continuous_batching_take_it()


def _let_continuous_batching_take_it() -> None:
    """Continuous batching has a fixed list of implementations; this adds ours."""
    from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager

    theirs = ContinuousBatchingManager.switch_to_cb_friendly_attn
    if getattr(theirs, "knows_chunkattn", False):
        return

    def switch_to_cb_friendly_attn(self: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        if model.config._attn_implementation != NAME:
            theirs(self, model, *args, **kwargs)

    switch_to_cb_friendly_attn.knows_chunkattn = True  # type: ignore[attr-defined]
    ContinuousBatchingManager.switch_to_cb_friendly_attn = switch_to_cb_friendly_attn

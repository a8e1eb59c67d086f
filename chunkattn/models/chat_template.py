"""Turns a conversation into the text a chat model was trained on."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any

from chunkattn.extras import require


class ChatTemplate:
    """A model's Jinja chat template, run in Jinja's sandbox: it comes with the weights, so it is not trusted.

    Attributes:
        source: its Jinja text.
    """

    def __init__(self, source: str, variables: Mapping[str, Any] | None = None) -> None:
        """Compiles the template.

        Args:
            source: Jinja text.
            variables: further names it may use, such as ``bos_token``.
        """
        sandbox = require("jinja2.sandbox", extra="demo", purpose="a chat template")
        environment = sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
        self.source = source
        self._template = environment.from_string(source)
        self._variables = dict(variables or {})

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt text, ending where the assistant's answer begins.

        Args:
            messages: ``{"role": ..., "content": ...}`` in order.
        """
        return str(self._template.render(messages=messages, add_generation_prompt=True, **self._variables))


def _raise(message: str) -> None:
    raise ValueError(f"messages: the chat template refused them: {message}")

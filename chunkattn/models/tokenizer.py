"""Text to token ids and back, over a `tokenizers.Tokenizer`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from chunkattn.models.chat_template import ChatTemplate


class Tokenizer:
    """A tokenizer with the model's chat format and end tokens.

    Attributes:
        eos_token_ids: tokens that end an answer.
        chat_template: None means the model takes plain text.
    """

    def __init__(
        self, backend: Any, *, eos_token_ids: Iterable[int], chat_template: ChatTemplate | None = None
    ) -> None:
        """Wraps a ``tokenizers.Tokenizer``.

        Args:
            backend: the ``tokenizers.Tokenizer``.
            eos_token_ids: tokens that end an answer.
            chat_template: None means the model takes plain text.
        """
        self._backend = backend
        self.eos_token_ids = frozenset(eos_token_ids)
        self.chat_template = chat_template

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, without special tokens."""
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def encode_chat(self, user: str, system: str | None = None) -> list[int]:
        """Ids of a one-turn conversation, ready for the assistant's answer.

        A model without a chat template gets the plain text, with the special tokens its tokenizer adds.

        Args:
            user: the user's message.
            system: an optional system message.
        """
        if self.chat_template is None:
            text = user if system is None else f"{system}\n\n{user}"
            return list(self._backend.encode(text).ids)
        messages = [] if system is None else [{"role": "system", "content": system}]
        # The template writes its own special tokens.
        return self.encode(self.chat_template.render([*messages, {"role": "user", "content": user}]))

    def token_of(self, token_id: int) -> str:
        """The token of an id, special tokens as they are written."""
        return str(self._backend.id_to_token(token_id))

    def save(self, path: Path) -> None:
        """Writes a Hugging Face ``tokenizer.json``."""
        self._backend.save(str(path))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of ids, special tokens left out."""
        return str(self._backend.decode(list(token_ids), skip_special_tokens=True))


class StreamingText:
    """Decodes an answer token by token, giving out only text that later tokens cannot change."""

    # A byte-level token may end inside a UTF-8 character; until the rest comes it decodes to this.
    _INCOMPLETE = "\ufffd"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._token_ids: list[int] = []
        self._window = 0  # tokens before this one are decoded for good
        self.text = ""

    def add(self, token_id: int) -> str:
        """Takes one more token.

        Returns:
            The text it completed; empty inside a character.
        """
        self._token_ids.append(token_id)
        # One token of context before the window keeps a leading-space rule from eating the space between words.
        before = self._tokenizer.decode(self._token_ids[max(self._window - 1, 0) : self._window])
        piece = self._tokenizer.decode(self._token_ids[max(self._window - 1, 0) :])[len(before) :]
        if piece.endswith(self._INCOMPLETE):
            return ""
        self._window = len(self._token_ids)
        self.text += piece
        return piece

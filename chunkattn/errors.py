"""Exceptions of chunkattn.

Bad arguments raise ``ValueError`` or ``TypeError`` with one sentence: ``{arg}: expected …, got …``.
"""

from __future__ import annotations


class UnsupportedError(NotImplementedError):
    """No backend can serve a legal problem; the message lists every backend's reason."""

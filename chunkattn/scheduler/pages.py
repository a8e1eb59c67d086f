"""The page allocator of the KV cache: who holds which page, and what the free ones still remember.

A full, computed page is found again by a hash chain over the tokens up to its end, as in vLLM's block pool: pages that
nobody holds stay valid until they are handed out again, oldest first.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

ExtraKeys = tuple[tuple[str, str], ...]


@dataclass(eq=False, slots=True)
class CachedPage:
    """A page whose content is known.

    The parent is an object, not a page id: when that page is used for something else, nobody mistakes it.
    """

    page: int
    digest: bytes
    tokens: bytes
    parent: CachedPage | ExtraKeys


def chain_hash(parent: bytes, tokens: bytes) -> bytes:
    """Hash of a page's tokens after everything before them."""
    return hashlib.blake2b(parent + tokens, digest_size=16).digest()


class PagePool:
    """Hands out page ids, counts who holds them, and finds pages by content."""

    def __init__(self, num_pages: int, page_size: int, hash_page: Callable[[bytes, bytes], bytes] = chain_hash) -> None:
        """All pages start free; a pool costs memory for the pages that were ever handed out, not for its size.

        Args:
            num_pages: pages in the pool, at least 1.
            page_size: tokens per page, at least 1.
            hash_page: (hash of the page before, tokens as bytes) to a hash; matches compare the tokens too, so that a
                collision is a miss.
        """
        for name, value in (("num_pages", num_pages), ("page_size", page_size)):
            if value < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}")
        self.num_pages = num_pages
        self.page_size = page_size
        self.hash_page = hash_page
        # Of the pages handed out so far; those from the end of these lists on are free and were never used.
        self.references: list[int] = []
        self._content: list[CachedPage | None] = []
        # Free pages that were given back, in that order: without and with content that can be found.
        self._blank: dict[int, None] = {}
        self._remembered: OrderedDict[int, None] = OrderedDict()
        self._index: dict[bytes, CachedPage] = {}

    def __len__(self) -> int:
        """Free pages."""
        return len(self._blank) + self.num_pages - len(self.references) + len(self._remembered)

    def pages_for(self, num_tokens: int) -> int:
        """Pages that hold this many tokens."""
        return -(-num_tokens // self.page_size)

    def match(self, keys: Iterable[tuple[bytes, bytes]], extra_keys: ExtraKeys = ()) -> list[CachedPage]:
        """The longest run of cached pages from the first (hash, tokens) key on."""
        found: list[CachedPage] = []
        parent: CachedPage | ExtraKeys = extra_keys
        for digest, tokens in keys:
            entry = self._index.get(digest)
            if entry is None or entry.tokens != tokens or entry.parent != parent:
                break
            found.append(entry)
            parent = entry
        return found

    def alloc(self, count: int) -> list[int]:
        """Takes free pages, those that are worth least first, and forgets what they hold.

        Raises:
            ValueError: fewer are free.
        """
        if count > len(self):
            raise ValueError(f"count: expected at most {len(self)} (the free pages), got {count}")
        pages = [self._next_free() for _ in range(count)]
        for page in pages:
            self.references[page] = 1
            self._forget(page)
        return pages

    def acquire(self, pages: Iterable[int]) -> None:
        """Holds pages that are cached or in use once more."""
        for page in pages:
            self.references[page] += 1
            self._blank.pop(page, None)
            self._remembered.pop(page, None)

    def commit(self, page: int, key: tuple[bytes, bytes], parent: CachedPage | ExtraKeys) -> CachedPage | None:
        """Makes a full, computed page findable.

        The first page of a content wins; a later one stays private, so that block tables only ever grow.

        Returns:
            The entry of this content, for the next page's parent; None where the chain cannot be found again.
        """
        digest, tokens = key
        if isinstance(parent, CachedPage) and self._content[parent.page] is not parent:
            return None
        entry = self._index.get(digest)
        if entry is not None and isinstance(entry.parent, CachedPage):
            above = entry.parent
            if self._content[above.page] is not above:  # cut off by an eviction: nobody can reach it
                self._forget(entry.page)
                entry = None
        if entry is None:
            self._index[digest] = self._content[page] = entry = CachedPage(page, digest, tokens, parent)
        return entry if entry.tokens == tokens and entry.parent == parent else None

    def release(self, pages: Sequence[int]) -> None:
        """Gives pages back, the last one first: of a chain the end is forgotten before the beginning.

        Raises:
            ValueError: a page is not in use (as often) or not of this pool; nothing is given back then.
        """
        for page, count in Counter(pages).items():
            if not 0 <= page < len(self.references) or self.references[page] < count:
                raise ValueError(f"pages: expected pages in use (of {self.num_pages}), got {page}")
        for page in reversed(pages):
            self.references[page] -= 1
            if not self.references[page]:
                (self._blank if self._content[page] is None else self._remembered)[page] = None

    def _next_free(self) -> int:
        """The free page that is worth least: one without content, the last given back first; a new one; the oldest."""
        if self._blank:
            return self._blank.popitem()[0]
        if len(self.references) == self.num_pages:
            return self._remembered.popitem(last=False)[0]
        self.references.append(0)
        self._content.append(None)
        return len(self.references) - 1

    def _forget(self, page: int) -> None:
        entry = self._content[page]
        if entry is not None:
            self._content[page] = None
            del self._index[entry.digest]

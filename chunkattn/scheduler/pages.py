"""The page allocator of the KV cache: which pages are free, who holds the others."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class PagePool:
    """Hands out page ids.

    Pages come back at the end of the free list and leave it at the front, so that a page rests as long as possible
    before it is written again. The list is an `OrderedDict` because a prefix cache takes pages from its middle.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        """All pages start free.

        Args:
            num_pages: pages in the pool, at least 1.
            page_size: tokens per page, at least 1.
        """
        if num_pages < 1:
            raise ValueError(f"num_pages: expected at least 1, got {num_pages}")
        if page_size < 1:
            raise ValueError(f"page_size: expected at least 1, got {page_size}")
        self.num_pages = num_pages
        self.page_size = page_size
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_pages))

    def __len__(self) -> int:
        """Free pages."""
        return len(self._free)

    def pages_for(self, num_tokens: int) -> int:
        """Pages that hold this many tokens."""
        return -(-num_tokens // self.page_size)

    def alloc(self, count: int) -> list[int]:
        """Takes free pages.

        Raises:
            ValueError: fewer are free.
        """
        if count > len(self._free):
            raise ValueError(f"count: expected at most {len(self._free)} (the free pages), got {count}")
        return [self._free.popitem(last=False)[0] for _ in range(count)]

    def release(self, pages: Iterable[int]) -> None:
        """Gives pages back, the last one first.

        Raises:
            ValueError: a page is free already or not of this pool; nothing is given back then.
        """
        returned = list(pages)
        for page in returned:
            if page in self._free or not 0 <= page < self.num_pages:
                raise ValueError(f"pages: expected pages in use (of {self.num_pages}), got {page}")
        if len(set(returned)) != len(returned):
            raise ValueError(f"pages: expected each page once, got {returned}")
        self._free.update(OrderedDict.fromkeys(reversed(returned)))

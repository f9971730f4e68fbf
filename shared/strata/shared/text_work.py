"""Runs CPU-bound work on texts without blocking the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeVar

ResultT = TypeVar("ResultT")

# Counting the tokens of so many characters takes less than a millisecond. A change of threads takes
# a tenth of one, and more in a process whose other threads compute.
_SHORT_CHARS = 2_000
# What a text costs however short it is, in characters.
_CHARS_PER_TEXT = 200


async def run_text_work(texts: Iterable[str], work: Callable[[], ResultT]) -> ResultT:
    """Returns the result of `work`, which runs on a thread if the texts are long or many.

    Args:
        texts: The texts that it processes.
        work: Takes time in proportion to their number and length.
    """
    if sum(len(text) + _CHARS_PER_TEXT for text in texts) <= _SHORT_CHARS:
        return work()
    return await asyncio.to_thread(work)

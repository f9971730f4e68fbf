"""Functions that the tests turn into tools."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

PRICES = {"apple": 3}
PRICES["pear"] = 4
HANDLE = object()


@dataclass
class Line:
    """A line of a bill."""

    fruit: str
    count: int = 1


def price_of(line: Line) -> int:
    """Returns the price of a line; a public function that is not the tool."""
    return PRICES[line.fruit] * line.count


async def bill(lines: list[Line], tip: int = 0) -> dict[str, int]:
    """Adds up a bill.

    Args:
        lines: The lines of the bill.
        tip: Added to the sum.
    """
    await asyncio.sleep(0)
    return {"total": sum(price_of(line) for line in lines) + tip}


def with_discount(percent: int) -> Any:
    """Returns a function that can be a tool."""

    def discounted(price: int) -> float:
        """Takes the discount off a price."""
        return price * (100 - percent) / 100

    return discounted


def unfit(x: int) -> str:
    """Uses a value that exists only in this process."""
    return f"{x} {HANDLE} {nowhere}"  # type: ignore[name-defined]  # noqa: F821

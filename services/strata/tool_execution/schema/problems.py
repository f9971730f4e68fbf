"""What is wrong with the source of a tool, in words for whoever wrote it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to change.

    Attributes:
        text: What is wrong, and what would be right.
        line: Line of the source, from 1; 0 if it is about none.
        parameter: The parameter that it is about, or empty.
    """

    text: str
    line: int = 0
    parameter: str = ""

    def __str__(self) -> str:
        """``line 3, parameter 'city': has no annotation``."""
        places = []
        if self.line:
            places.append(f"line {self.line}")
        if self.parameter:
            places.append(f"parameter {self.parameter!r}")
        return f"{', '.join(places)}: {self.text}" if places else self.text


class SourceError(Exception):
    """No tool can be made of the source.

    Attributes:
        problems: Everything that was found, in the order of the source.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: problem.line))
        super().__init__("; ".join(map(str, self.problems)))


class AnnotationError(Exception):
    """An annotation says nothing that JSON could hold; used inside this package."""

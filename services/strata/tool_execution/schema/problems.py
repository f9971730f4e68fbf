"""Problems in the source of a tool, described for its author."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem in a source.

    Attributes:
        text: The problem, and the expected form.
        line: Line of the source, from 1; 0 if the problem has no line.
        parameter: Name of the affected parameter, or empty.
    """

    text: str
    line: int = 0
    parameter: str = ""

    def __str__(self) -> str:
        """Returns text such as ``line 3, parameter 'city': has no annotation``."""
        locations = []
        if self.line:
            locations.append(f"line {self.line}")
        if self.parameter:
            locations.append(f"parameter {self.parameter!r}")
        return f"{', '.join(locations)}: {self.text}" if locations else self.text


class SourceError(Exception):
    """The source is not a valid tool.

    Attributes:
        problems: All problems, in the order of the source.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: problem.line))
        super().__init__("; ".join(map(str, self.problems)))


class AnnotationError(Exception):
    """An annotation has no JSON schema; used only within this package."""

"""What fails on this side of the wire."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from strata.shared.errors import FieldViolation, InvalidArgumentError, UnavailableError


class UnreachableError(UnavailableError):
    """No gateway answers; not the same as a gateway that cannot do something now."""


@dataclass(frozen=True, slots=True)
class SourceProblem:
    """One thing that keeps a function from being a tool.

    Attributes:
        text: What is wrong, and what would be right.
        line: Line of the file that the function is in, from 1; 0 if it is about none.
    """

    text: str
    line: int = 0

    def __str__(self) -> str:
        """``line 3: uses model, which ...``."""
        return f"line {self.line}: {self.text}" if self.line else self.text


class ToolSourceError(InvalidArgumentError):
    """No source that stands alone can be made of a function; nothing was sent.

    Attributes:
        problems: Everything that was found, by line.
    """

    def __init__(self, function: str, problems: Iterable[SourceProblem], file: str = "") -> None:
        self.problems = tuple(sorted(set(problems), key=lambda each: (each.line, each.text)))
        where = f" ({file})" if file else ""
        told = "; ".join(map(str, self.problems))
        super().__init__(
            f"{function}{where} cannot be a tool: {told}",
            violations=[FieldViolation("function", str(problem)) for problem in self.problems],
        )

"""Errors that the client raises itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from strata.protocol.errors import FieldViolation, InvalidArgumentError, UnavailableError


class UnreachableError(UnavailableError):
    """No gateway answers, in contrast to a gateway that is temporarily unable to serve a call."""


@dataclass(frozen=True, slots=True)
class SourceProblem:
    """A reason why a function cannot be a tool.

    Attributes:
        text: The problem, and the required action.
        line: Line in the function's file, from 1; 0 for none.
    """

    text: str
    line: int = 0

    def __str__(self) -> str:
        """``line 3: uses model, which ...``."""
        return f"line {self.line}: {self.text}" if self.line else self.text


class ToolSourceError(InvalidArgumentError):
    """The source of a tool cannot be extracted from a function; nothing was sent.

    Attributes:
        problems: All problems, by line.
    """

    def __init__(self, function: str, problems: Iterable[SourceProblem], file: str = "") -> None:
        self.problems = tuple(
            sorted(set(problems), key=lambda problem: (problem.line, problem.text))
        )
        where = f" ({file})" if file else ""
        listed = "; ".join(map(str, self.problems))
        super().__init__(
            f"{function}{where} cannot be a tool: {listed}",
            violations=[FieldViolation("function", str(problem)) for problem in self.problems],
        )

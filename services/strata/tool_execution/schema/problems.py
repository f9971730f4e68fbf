"""What is wrong with the source of a tool, in words for whoever wrote it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from strata.shared.json_text import MAX_JSON_DEPTH, is_deeper

_TOO_DEEP = f"is nested deeper than {MAX_JSON_DEPTH} levels"


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


def unstorable(value: Any) -> str:
    """Says why a JSON value cannot be stored or sent; empty if it can."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        return "holds half a character, which is no text"
    except RecursionError:
        return _TOO_DEEP
    except (ValueError, TypeError):
        return "holds a number that JSON does not have"
    if is_deeper(value):
        return _TOO_DEEP
    waiting = [value]
    while waiting:
        match waiting.pop():
            case str() as text if "\0" in text:
                return "holds the character NUL"
            case list() as items:
                waiting.extend(items)
            case dict() as members:
                waiting.extend((*members, *members.values()))
            case _:
                pass
    return ""

"""Parses Google-style docstrings of custom tools.

Unlike the package docstring-parser it accepts every text: entries of ``Args`` without a colon are
skipped instead of raising an error, and sections such as ``Notes`` never become part of the
description.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_SECTION = re.compile(
    r"(Args|Arguments|Parameters|Params|Returns?|Yields?|Raises|Attributes|Examples?|Notes?"
    r"|Warnings?|Warns|See Also|References|Todo):\s*"
)
_ARGUMENTS = frozenset({"Args", "Arguments", "Parameters", "Params"})
_ENTRY = re.compile(r"\*{0,2}(?P<name>\w+)\s*(\([^)]*\))?\s*:\s*(?P<text>.*)")


@dataclass(frozen=True, slots=True)
class Docstring:
    """The parts of a docstring.

    Attributes:
        description: The text before the first section.
        arguments: Description of each parameter, as one line.
    """

    description: str = ""
    arguments: dict[str, str] = field(default_factory=dict)


def read_docstring(text: str) -> Docstring:
    """Returns the parts of a docstring without common indentation (`inspect.cleandoc`)."""
    description: list[str] = []
    section: str | None = None
    inside: list[str] = []
    for line in text.splitlines():
        header = _SECTION.fullmatch(line)
        if header:
            section = header.group(1)
        elif section is None:
            description.append(line)
        elif section in _ARGUMENTS:
            inside.append(line)
    return Docstring("\n".join(description).strip(), dict(_entries(inside)))


def _entries(lines: list[str]) -> Iterator[tuple[str, str]]:
    indents = [_indent(line) for line in lines if line.strip()]
    level = min(indents, default=0)
    name, parts = "", [""]
    for line in lines:
        entry = _ENTRY.fullmatch(line.strip()) if _indent(line) == level else None
        if entry:
            if name:
                yield name, _joined(parts)
            name, parts = entry["name"], [entry["text"]]
        else:
            parts.append(line)
    if name:
        yield name, _joined(parts)


def _joined(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())

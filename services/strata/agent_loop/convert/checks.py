"""Shared checks of request fields. Each returns violations; `refuse` raises them together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from strata.protocol.errors import FieldViolation, invalid_fields
from strata.shared.local_time import is_time_zone
from strata.shared.metadata_pairs import MAX_METADATA_PAIRS
from strata.shared.names import MAX_AGENT_NAME_CHARS, name_problems
from strata.shared.tool_catalogue import GROUP_TOOLS, MAX_AGENT_TOOLS

MAX_NAME = MAX_AGENT_NAME_CHARS
MAX_DESCRIPTION = 10_000
MAX_SYSTEM = 200_000
MAX_TAGS = 64
MAX_VALUE = 4_000
# The name of a tool, or of an MCP server for all its tools: "files__*".
_TOOL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_\-]{0,63}(?:__\*)?")


def refuse(violations: Sequence[FieldViolation]) -> None:
    """Raises an error if there are violations.

    Raises:
        InvalidArgumentError: Fields are wrong; the violations name all of them.
    """
    if violations:
        raise invalid_fields(violations)


def text_violations(field: str, text: str, limit: int | None = None) -> list[FieldViolation]:
    """Returns violations in a text that is to be stored."""
    violations = []
    if "\0" in text:
        violations.append(FieldViolation(field, "must not contain NUL"))
    if limit is not None and len(text) > limit:
        violations.append(FieldViolation(field, f"has {len(text)} characters, at most {limit}"))
    return violations


def name_violations(field: str, name: str) -> list[FieldViolation]:
    """Returns violations in the name of an agent or the title of a conversation."""
    return [FieldViolation(field, problem) for problem in name_problems(name, most=MAX_NAME)]


def tool_violations(field: str, names: Sequence[str]) -> list[FieldViolation]:
    """Returns violations in a list of tools."""
    violations = [
        FieldViolation(f"{field}[{index}]", "is not a tool name")
        for index, name in enumerate(names)
        if not _TOOL_NAME.fullmatch(name)
    ]
    violations.extend(
        FieldViolation(
            f"{field}[{index}]",
            f"must not be {name}: only groups offer it, to their agents in their runs",
        )
        for index, name in enumerate(names)
        if name in GROUP_TOOLS
    )
    violations.extend(tool_count_violations(field, names))
    return violations


def tool_count_violations(field: str, names: Sequence[str]) -> list[FieldViolation]:
    """Returns a violation if an agent would have too many tools."""
    if len(names) <= MAX_AGENT_TOOLS:
        return []
    return [FieldViolation(field, f"has {len(names)} tools, at most {MAX_AGENT_TOOLS}")]


def tag_violations(field: str, tags: Sequence[str]) -> list[FieldViolation]:
    """Returns violations in a list of tags."""
    violations = [
        violation
        for index, tag in enumerate(tags)
        for violation in _tag_violations(f"{field}[{index}]", tag)
    ]
    if len(tags) > MAX_TAGS:
        violations.append(FieldViolation(field, f"has {len(tags)} tags, at most {MAX_TAGS}"))
    return violations


def _tag_violations(field: str, tag: str) -> list[FieldViolation]:
    violations = text_violations(field, tag, MAX_NAME)
    if not tag.strip():
        violations.append(FieldViolation(field, "must not be empty"))
    return violations


def pair_violations(field: str, pairs: Mapping[str, str]) -> list[FieldViolation]:
    """Returns violations in free key-value pairs."""
    violations = [
        violation
        for key, value in pairs.items()
        for violation in (
            *text_violations(f"{field}[{key[:40]!r}]", key, MAX_NAME),
            *text_violations(f"{field}[{key[:40]!r}]", value, MAX_VALUE),
        )
    ]
    if len(pairs) > MAX_METADATA_PAIRS:
        violations.append(
            FieldViolation(field, f"has {len(pairs)} pairs, at most {MAX_METADATA_PAIRS}")
        )
    return violations


def timezone_violations(field: str, name: str) -> list[FieldViolation]:
    """Returns a violation if a time zone is unknown."""
    if is_time_zone(name):
        return []
    return [FieldViolation(field, f"{name[:64]!r} is not an IANA time zone")]


def range_violations(field: str, value: float, low: float, high: float) -> list[FieldViolation]:
    """Returns a violation if a number is outside its range."""
    if low <= value <= high:
        return []
    return [FieldViolation(field, f"must be between {low:.12g} and {high:.12g}")]


def joined(groups: Iterable[Sequence[FieldViolation]]) -> list[FieldViolation]:
    """Returns all violations of several checks."""
    return [violation for group in groups for violation in group]

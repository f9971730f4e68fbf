"""Requirements as projects write them: which can be used, and which mean the same."""

from __future__ import annotations

import hashlib
import json
import sys
import sysconfig
from collections.abc import Sequence

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

MAX_CHARS = 200
# A change of how environments are built makes all of them anew.
_FORMAT = 1
# uv puts variables of its environment into a file of requirements, and joins lines.
_FORBIDDEN = frozenset("$\\")


def problem_of(text: str) -> str:
    """Says why a requirement cannot be used; empty if it can."""
    requirement = _parse(text)
    if requirement is None or not text.isprintable() or _FORBIDDEN & set(text):
        return 'is no pip requirement such as "requests>=2,<3"'
    if requirement.url:
        return "names an address; only packages of the index can be used"
    if any(each.operator == "===" for each in requirement.specifier):
        return "compares by ===, which is not supported; write =="
    return ""


def package_of(text: str) -> str:
    """Returns the name of the package that a requirement is about; of a wrong one, its text."""
    requirement = _parse(text)
    return canonicalize_name(requirement.name) if requirement else text


def normal(requirements: Sequence[str]) -> tuple[str, ...]:
    """Returns valid requirements in one order and spelling."""
    lines = []
    for text in requirements:
        requirement = Requirement(text)
        requirement.name = canonicalize_name(requirement.name)
        lines.append(str(requirement))
    return tuple(sorted(set(lines)))


def key_of(requirements: Sequence[str]) -> str:
    """Returns what names the environment of normal requirements for this Python and machine."""
    what = [_FORMAT, sys.implementation.cache_tag, sysconfig.get_platform(), *requirements]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32]


def _parse(text: str) -> Requirement | None:
    try:
        return Requirement(text) if len(text) <= MAX_CHARS else None
    except (InvalidRequirement, RecursionError):
        return None

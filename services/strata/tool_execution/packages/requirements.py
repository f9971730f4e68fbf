"""Checks and normalises pip requirements of tools."""

from __future__ import annotations

import hashlib
import json
import sys
import sysconfig
from collections.abc import Sequence

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidName, canonicalize_name

MAX_CHARS = 200
# Increase it when the way of building changes, so that all environments are built again.
_FORMAT = 1
# uv expands environment variables in requirements files, and joins lines that end with a backslash.
_FORBIDDEN = frozenset("$\\")


def problem_of(text: str) -> str:
    """Returns why a requirement cannot be used; empty if it can."""
    requirement = _parse(text)
    if requirement is None or not text.isprintable() or _FORBIDDEN & set(text):
        return 'is not a valid pip requirement; write for example "requests>=2,<3"'
    if requirement.url:
        return "contains a URL; only packages of the index can be used"
    if any(specifier.operator == "===" for specifier in requirement.specifier):
        return "uses ===, which is not supported; use =="
    return ""


def package_of(text: str) -> str:
    """Returns the package name of a requirement; its text if it is invalid."""
    requirement = _parse(text)
    return canonicalize_name(requirement.name) if requirement else text


def normal(requirements: Sequence[str]) -> tuple[str, ...]:
    """Returns valid requirements without duplicates, normalised and sorted."""
    lines = []
    for text in requirements:
        requirement = Requirement(text)
        requirement.name = canonicalize_name(requirement.name)
        lines.append(str(requirement))
    return tuple(sorted(set(lines)))


def key_of(requirements: Sequence[str]) -> str:
    """Returns the key of the environment for normalised requirements, this Python and platform."""
    parts = [_FORMAT, sys.implementation.cache_tag, sysconfig.get_platform(), *requirements]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _parse(text: str) -> Requirement | None:
    if len(text) > MAX_CHARS:
        return None
    try:
        requirement = Requirement(text)
        # `Requirement` accepts names that no package has, such as "0_".
        canonicalize_name(requirement.name, validate=True)
    except (InvalidRequirement, InvalidName, RecursionError):
        return None
    return requirement

"""Three-way merges of documents, by the rules of the server."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from strata.cli.memory.markdown import FIELDS, BlockFile


@dataclass(frozen=True, slots=True)
class Merged:
    """Result of a merge.

    Attributes:
        document: The document with both changes; where they conflict, with theirs.
        conflicts: Names of the fields that were changed in different ways.
    """

    document: BlockFile
    conflicts: tuple[str, ...] = ()


def merge(base: BlockFile, theirs: BlockFile, mine: BlockFile) -> Merged:
    """Merges two changed versions of `base`; all fields must be set.

    The result has the identity and the revision of `theirs`.
    """
    values: dict[str, Any] = {}
    conflicts: list[str] = []
    for name in FIELDS:
        was, has, wants = (getattr(document, name) for document in (base, theirs, mine))
        merged = _merged(name, was, has, wants)
        if merged is None:
            conflicts.append(name)
            merged = has
        values[name] = merged
    return Merged(replace(theirs, **values), tuple(conflicts))


def _merged(name: str, was: Any, has: Any, wants: Any) -> Any:
    """Returns the merged value of a field; None for a conflict."""
    if wants in (was, has):
        return has
    if has == was:
        return wants
    if name != "value":
        return None
    from strata.core_memory.domain.text_edits.three_way_merge import merge3_text  # noqa: PLC0415 - of use to few commands

    return merge3_text(was, has, wants)

"""The principal of a run. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """The principal of a run; stored with it, so that any gateway can continue it."""

    organization_id: str
    project_id: str
    name: str
    scopes: frozenset[str]

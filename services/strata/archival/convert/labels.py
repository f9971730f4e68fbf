"""Converts taint labels between protos and the domain."""

from __future__ import annotations

from collections.abc import Iterable

from strata.api.common.v1 import message_pb2 as common

_UNTRUSTED = {common.PROVENANCE_WEB: "web", common.PROVENANCE_MCP: "mcp"}
_BACK = {name: value for value, name in _UNTRUSTED.items()}


def to_taint(values: Iterable[common.Provenance.ValueType]) -> tuple[str, ...]:
    """Returns proto labels as taint labels, in a fixed order; other labels are left out."""
    present = set(values)
    return tuple(name for value, name in _UNTRUSTED.items() if value in present)


def taint_to_proto(taint: Iterable[str]) -> list[common.Provenance.ValueType]:
    """Returns taint labels as proto labels."""
    return [_BACK[label] for label in taint]

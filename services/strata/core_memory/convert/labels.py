"""Converts taint labels between protos and the domain."""

from __future__ import annotations

from collections.abc import Iterable

from strata.api.common.v1 import message_pb2 as common
from strata.core_memory.domain.taint import MCP, WEB, joined

_LABELS = {common.PROVENANCE_WEB: WEB, common.PROVENANCE_MCP: MCP}
_LABELS_BACK = {label: value for value, label in _LABELS.items()}


def to_taint(values: Iterable[common.Provenance.ValueType]) -> tuple[str, ...]:
    """Returns proto labels as taint labels; labels that do not taint blocks are left out."""
    return joined([_LABELS[value] for value in values if value in _LABELS])


def taint_to_proto(taint: Iterable[str]) -> list[common.Provenance.ValueType]:
    """Returns taint labels as proto labels."""
    return [_LABELS_BACK[label] for label in taint]

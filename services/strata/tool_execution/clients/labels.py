"""Converts labels of untrusted content (taint) between the wire and the domain."""

from __future__ import annotations

from collections.abc import Iterable

from strata.api.common.v1 import message_pb2 as common

_UNTRUSTED = {common.PROVENANCE_WEB: "web", common.PROVENANCE_MCP: "mcp"}
_BACK = {name: value for value, name in _UNTRUSTED.items()}


def labels_to_proto(taint: Iterable[str]) -> list[common.Provenance.ValueType]:
    """Returns the wire form of the labels "web" and "mcp"."""
    return [_BACK[label] for label in taint]


def labels_to_domain(values: Iterable[common.Provenance.ValueType]) -> tuple[str, ...]:
    """Returns the labels of untrusted provenances, without duplicates, in a fixed order."""
    wanted = set(values)
    return tuple(name for value, name in _UNTRUSTED.items() if value in wanted)


def taint_of_messages(messages: Iterable[common.Message]) -> tuple[str, ...]:
    """Returns the untrusted labels of messages."""
    return labels_to_domain(label for message in messages for label in message.provenance)

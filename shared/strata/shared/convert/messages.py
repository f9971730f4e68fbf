"""Converts roles, statuses and labels of messages."""

from __future__ import annotations

from collections.abc import Iterable

from strata.api.common.v1 import message_pb2 as common
from strata.shared.convert.enums import EnumTable
from strata.shared.messages import MessageRole, ToolStatus
from strata.shared.provenance import Provenance, Taint, taint_of
from strata.shared.tool_returns import quoted_return

ROLES = EnumTable(common.Role, MessageRole)
STATUSES = EnumTable(common.ToolStatus, ToolStatus)
PROVENANCES = EnumTable(common.Provenance, Provenance)

_LABELS = PROVENANCES.from_proto
_NUMBERS = {label.value: number for label, number in PROVENANCES.to_proto.items()}


def role_name(role: common.Role.ValueType) -> str:
    """Returns the name of a role, such as ``user``; ``system`` for a role of a newer release."""
    return ROLES.from_proto.get(role, MessageRole.SYSTEM).value


def returned_text(part: common.ToolReturnPart) -> str:
    """Returns what a call returned, as text; see `quoted_return`."""
    return quoted_return(STATUSES.from_proto.get(part.status, ToolStatus.UNKNOWN), part.content)


def labels_from_proto(values: Iterable[common.Provenance.ValueType]) -> tuple[Provenance, ...]:
    """Returns labels; those unknown to this release are left out."""
    return tuple([_LABELS[value] for value in values if value in _LABELS])


def labels_to_proto(labels: Iterable[str]) -> list[common.Provenance.ValueType]:
    """Returns labels as proto values."""
    return [_NUMBERS[label] for label in labels]


def taint_from_proto(values: Iterable[common.Provenance.ValueType]) -> Taint:
    """Returns the untrusted labels among proto values, each once, in a fixed order."""
    return taint_of(labels_from_proto(values))


def taint_of_messages(messages: Iterable[common.Message]) -> Taint:
    """Returns the untrusted labels of messages, each once, in a fixed order."""
    return taint_from_proto(label for message in messages for label in message.provenance)

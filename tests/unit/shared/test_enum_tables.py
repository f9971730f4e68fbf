"""Tables of enums: members correspond to proto values by name."""

from __future__ import annotations

from enum import StrEnum

import pytest

from strata.api.common.v1 import message_pb2, run_event_pb2, tool_pb2
from strata.shared.convert.enums import EnumTable
from strata.shared.convert.messages import (
    PROVENANCES,
    ROLES,
    STATUSES,
    labels_from_proto,
    labels_to_proto,
    taint_from_proto,
)
from strata.shared.convert.records import RecordTable
from strata.shared.convert.tools import EFFECTS, RULE_TYPES
from strata.shared.memory_edits import MemoryEdit
from strata.shared.messages import MessageRole
from strata.shared.provenance import Provenance
from strata.shared.usage import Usage


class Fruit(StrEnum):
    APPLE = "apple"


def test_members_correspond_to_proto_values_by_name() -> None:
    assert ROLES.to_proto[MessageRole.USER] == message_pb2.ROLE_USER
    assert ROLES.from_proto[message_pb2.ROLE_SUMMARY] is MessageRole.SUMMARY
    assert message_pb2.ROLE_UNSPECIFIED not in ROLES.from_proto


def test_the_zero_value_is_a_member_or_has_a_default() -> None:
    assert EFFECTS.from_proto[tool_pb2.TOOL_EFFECT_UNSPECIFIED].name == "UNDECLARED"
    table = EnumTable(message_pb2.Role, MessageRole, default=MessageRole.USER)
    assert table.from_proto[message_pb2.ROLE_UNSPECIFIED] is MessageRole.USER
    assert table.to_proto[MessageRole.USER] == message_pb2.ROLE_USER


def test_member_without_a_proto_value_is_refused_at_import() -> None:
    with pytest.raises(ValueError, match="APPLE"):
        EnumTable(message_pb2.Role, Fruit)


@pytest.mark.parametrize(
    ("table", "wire"),
    [
        (ROLES, message_pb2.Role),
        (STATUSES, message_pb2.ToolStatus),
        (PROVENANCES, message_pb2.Provenance),
        (EFFECTS, tool_pb2.ToolEffect),
        (RULE_TYPES, tool_pb2.ToolRuleType),
    ],
)
def test_every_value_of_the_proto_has_a_member(
    table: EnumTable[MessageRole, int], wire: type[message_pb2.Role]
) -> None:
    assert {0, *table.from_proto} == set(wire.values())


def test_labels_are_unchanged_after_conversion_and_unknown_ones_are_dropped() -> None:
    labels = tuple(Provenance)
    assert labels_from_proto(labels_to_proto(labels)) == labels
    assert labels_from_proto([99]) == ()  # type: ignore[list-item]
    assert labels_to_proto(["web"]) == [message_pb2.PROVENANCE_WEB]


def test_taint_has_each_untrusted_label_once_in_a_fixed_order() -> None:
    labels = [Provenance.MCP, Provenance.USER, Provenance.WEB, Provenance.MCP]
    assert taint_from_proto(labels_to_proto(labels)) == (Provenance.WEB, Provenance.MCP)


def test_record_with_a_field_that_is_not_plain_is_refused_at_import() -> None:
    with pytest.raises(TypeError, match="block_id"):
        RecordTable(MemoryEdit, message_pb2.TextPart)
    with pytest.raises(TypeError, match="prompt_tokens"):
        RecordTable(Usage, run_event_pb2.MemoryEdit)

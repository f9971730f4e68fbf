"""Provenance of tool returns."""

from __future__ import annotations

import pytest

from strata.api.common.v1 import message_pb2 as common
from strata.shared.messages import ToolStatus
from strata.tool_execution.builtin.definitions import BUILTIN_TOOLS
from strata.tool_execution.convert.execution import event_to_proto
from strata.tool_execution.domain.tools import CallOutcome, ToolCall


@pytest.mark.parametrize(
    ("name", "ok", "provenance"),
    [
        ("fetch_webpage", True, common.PROVENANCE_WEB),
        ("web_search", True, common.PROVENANCE_WEB),
        ("fetch_webpage", False, common.PROVENANCE_SYSTEM),
        ("archival_memory_search", True, common.PROVENANCE_MEMORY),
        ("archival_memory_search", False, common.PROVENANCE_MEMORY),
        ("no_such_tool", False, common.PROVENANCE_SYSTEM),
    ],
)
def test_the_provenance_of_a_return_depends_on_its_tool(
    name: str, ok: bool, provenance: common.Provenance.ValueType
) -> None:
    status = ToolStatus.OK if ok else ToolStatus.FAILED
    outcome = CallOutcome(ToolCall("call-1", name, "{}", "key"), status, "{}", 0.1)
    finished = event_to_proto(outcome, dict(BUILTIN_TOOLS)).finished
    assert finished.tool_return.provenance == provenance

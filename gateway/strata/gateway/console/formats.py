"""Filters of the templates: enum values in words, durations, tokens, prices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from strata.api.agent_loop.v1 import group_service_pb2 as group_pb
from strata.api.common.v1 import message_pb2, run_event_pb2, tool_pb2
from strata.api.common.v1.usage_pb2 import Usage
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.api.gateway.v1 import schedule_service_pb2 as schedule_pb
from strata.api.tool_execution.v1 import mcp_service_pb2 as mcp_pb
from strata.api.tool_execution.v1 import tool_service_pb2 as tool_service_pb
from strata.shared.convert.enums import enum_name

_MICROS = 1_000_000


def seconds(milliseconds: int) -> str:
    """Returns a duration in seconds, to the millisecond below a minute."""
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:,.3f} s"
    minutes, rest = divmod(round(milliseconds / 1000), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min {rest} s" if hours else f"{minutes} min {rest} s"


def share(part: int, whole: int) -> str:
    """Returns a part of a whole in percent; empty without a whole."""
    return f"{part / whole:.0%}" if whole else ""


def tokens(usage: Usage) -> str:
    """Returns the tokens of a call or a run; empty if there are none."""
    if not usage.total_tokens:
        return ""
    about = "about " if usage.estimated else ""
    return f"{about}{usage.prompt_tokens:,} in, {usage.completion_tokens:,} out"


def price(micros: int) -> str:
    """Returns a price in the unit of the configured prices."""
    return f"{micros / _MICROS:,.6f}"


def _named(wire: Any) -> Callable[[int], str]:
    return partial(enum_name, wire)


FILTERS: Mapping[str, Callable[..., str]] = {
    "seconds": seconds,
    "share": share,
    "tokens": tokens,
    "price": price,
    "run_state": _named(run_pb.RunState),
    "run_kind": _named(run_pb.RunKind),
    "stop_reason": _named(run_event_pb2.StopReason),
    "tool_status": _named(message_pb2.ToolStatus),
    "tool_type": _named(tool_pb2.ToolType),
    "tool_effect": _named(tool_pb2.ToolEffect),
    "tool_end": _named(tool_service_pb.RunToolEnd),
    "schedule_state": _named(schedule_pb.ScheduleState),
    "tick_outcome": _named(schedule_pb.TickOutcome),
    "manager_type": _named(group_pb.ManagerType),
    "mcp_transport": _named(mcp_pb.McpTransport),
    "mcp_tool_state": _named(mcp_pb.McpToolState),
}
"""Filters by name."""

"""Agents that reply in JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from strata.agent_loop.domain.agent.response_formats import ResponseFormat, ResponseFormatType
from unit.agent_loop.loop.in_memory_ports import Agents
from unit.agent_loop.loop.loop_harness import LoopHarness

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "note": {"type": "string"}},
    "required": ["city"],
}
WEATHER = ResponseFormat(
    ResponseFormatType.JSON_SCHEMA, "weather", "The weather.", json.dumps(SCHEMA)
)
ANY = ResponseFormat(ResponseFormatType.JSON_OBJECT)
TEXT = ResponseFormat()
INVALID, VALID = '{"town": "Rome"}', '{"city": "Rome"}'


def harness_with(asked: ResponseFormat = WEATHER, **fields: Any) -> LoopHarness:
    harness = LoopHarness()
    harness.agent = replace(harness.agent, response_format=asked, **fields)
    harness.ports = replace(harness.ports, agents=Agents(harness.agent))
    return harness

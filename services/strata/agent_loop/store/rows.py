"""Converts agents and conversations to and from database rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any, get_type_hints

from strata.agent_loop.domain.agent.agents import (
    Agent,
    AgentState,
    CompactionSettings,
    Conversation,
    MessagePackaging,
    ModelConfig,
    StoredAgent,
)
from strata.agent_loop.domain.agent.message_buffer import BufferLengths
from strata.agent_loop.domain.agent.response_formats import (
    response_format_from_json,
    response_format_to_json,
)
from strata.agent_loop.domain.agent.tool_rules import rule_from_json, rule_to_json
from strata.agent_loop.domain.model.keys import SealedKey
from strata.shared.agent_types import AgentType

_PLAIN_TYPES: Mapping[Any, str] = {str: "text", int: "integer", bool: "boolean"}
# The plain fields of `Agent`: each is stored in the column of its name. The statements count the
# revision themselves.
_PLAIN = {
    name: _PLAIN_TYPES[hint]
    for name, hint in get_type_hints(Agent).items()
    if hint in _PLAIN_TYPES and name != "revision"
}
# The columns of the other fields, which `agent_parameters` and `to_agent` convert.
_CONVERTED = {
    "type": "text",
    "model": "jsonb",
    "tools": "text[]",
    "tool_rules": "jsonb",
    "tags": "text[]",
    "metadata": "jsonb",
    "compaction": "jsonb",
    "packaging": "jsonb",
    "response_format": "jsonb",
    "max_message_buffer_length": "integer",
    "min_message_buffer_length": "integer",
}
AGENT_VALUES: Mapping[str, str] = {
    name: f"CAST(:{name} AS {sql_type})" for name, sql_type in {**_PLAIN, **_CONVERTED}.items()
}
"""The columns of an agent, with the SQL expressions for `agent_parameters`."""

UNCHANGING_COLUMNS = ("id", "type", "tends_agent_id")
"""The columns of an agent that are written only at creation."""

AGENT_COLUMNS = ", ".join((*AGENT_VALUES, "revision", "create_time", "update_time"))
STORED_COLUMNS = f"{AGENT_COLUMNS}, state, request_id, payload_hash"
CONVERSATION_COLUMNS = "id, agent_id, title, forked_from_id, create_time, external_id"


def agent_parameters(agent: Agent) -> dict[str, Any]:
    """Returns the parameters of a statement that writes an agent."""
    return {
        **{name: getattr(agent, name) for name in _PLAIN},
        "type": agent.type.value,
        "model": json.dumps(asdict(agent.model)),
        "tools": list(agent.tools),
        "tool_rules": json.dumps([rule_to_json(rule) for rule in agent.tool_rules]),
        "tags": list(agent.tags),
        "metadata": json.dumps(dict(agent.metadata)),
        "compaction": json.dumps(asdict(agent.compaction)),
        "packaging": json.dumps(asdict(agent.packaging)),
        "response_format": json.dumps(response_format_to_json(agent.response_format)),
        "max_message_buffer_length": agent.buffer.longest if agent.buffer else 0,
        "min_message_buffer_length": agent.buffer.shortest if agent.buffer else 0,
    }


def to_agent(row: Mapping[str, Any]) -> Agent:
    """Returns the agent in a row, or in the answer to an older request.

    Answers that an older release stored lack later columns; they get the defaults of `Agent`.
    """
    return Agent(
        **{name: row[name] for name in _PLAIN if name in row},
        type=AgentType(row["type"]),
        model=_model(row["model"]),
        tools=tuple(row["tools"]),
        tool_rules=tuple(rule_from_json(rule) for rule in _array(row.get("tool_rules", []))),
        tags=tuple(row["tags"]),
        metadata=_object(row["metadata"]),
        compaction=_compaction(row["compaction"]),
        packaging=MessagePackaging(**_object(row.get("packaging", {}))),
        response_format=response_format_from_json(_object(row.get("response_format", {}))),
        buffer=_buffer(row),
        revision=row["revision"],
        create_time=_moment(row["create_time"]),
        update_time=_moment(row["update_time"]),
    )


def _buffer(row: Mapping[str, Any]) -> BufferLengths | None:
    longest = row.get("max_message_buffer_length", 0)
    return BufferLengths(longest, row["min_message_buffer_length"]) if longest else None


def to_keys(row: Mapping[str, Any]) -> tuple[SealedKey, ...]:
    """Returns the model keys in a row."""
    columns = (row["providers"] or (), row["owners"] or (), row["sealed"] or ())
    return tuple(SealedKey(*columns_of_key) for columns_of_key in zip(*columns, strict=True))


def to_stored(row: Mapping[str, Any]) -> StoredAgent:
    """Returns the agent in a row, with its state."""
    return StoredAgent(
        to_agent(row), AgentState(row["state"]), row["request_id"], row["payload_hash"]
    )


def to_conversation(row: Mapping[str, Any]) -> Conversation:
    """Returns the conversation in a row."""
    return Conversation(
        id=row["id"],
        agent_id=row["agent_id"],
        title=row["title"],
        forked_from_id=row["forked_from_id"],
        create_time=_moment(row["create_time"]),
        # Stored answers of earlier releases do not have it.
        external_id=row.get("external_id", ""),
    )


def answer(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a row as a JSON object, to answer a repeated request; `to_agent` reads it."""
    return {
        key: value.isoformat() if isinstance(value, datetime) else value
        for key, value in row.items()
    }


def _compaction(value: Any) -> CompactionSettings:
    fields = _object(value)
    if fields.get("model_settings") is not None:
        fields["model_settings"] = _model(fields["model_settings"])
    return CompactionSettings(**fields)


def _model(value: Any) -> ModelConfig:
    fields = _object(value)
    fields["fallback_models"] = tuple(fields.get("fallback_models", ()))
    return ModelConfig(**fields)


def _object(value: Any) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(value) if isinstance(value, str) else value
    return parsed


def _array(value: Any) -> list[dict[str, Any]]:
    parsed: list[dict[str, Any]] = json.loads(value) if isinstance(value, str) else value
    return parsed


def _moment(value: datetime | str) -> datetime:
    return datetime.fromisoformat(value) if isinstance(value, str) else value

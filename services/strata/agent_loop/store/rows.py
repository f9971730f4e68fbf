"""Converts agents and conversations to and from database rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

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

AGENT_COLUMNS = (
    "id, name, type, description, system, model, tools, tool_rules, tags, timezone, metadata,"
    " compaction, packaging, message_buffer_autoclear, response_format, max_files_open,"
    " per_file_view_window_char_limit, memory_agent_id, sleeptime_frequency, tends_agent_id,"
    " max_message_buffer_length, min_message_buffer_length,"
    " revision, create_time, update_time"
)
STORED_COLUMNS = f"{AGENT_COLUMNS}, state, request_id, payload_hash"
CONVERSATION_COLUMNS = "id, agent_id, title, forked_from_id, create_time"


def agent_parameters(agent: Agent) -> dict[str, Any]:
    """Returns the parameters of a statement that writes an agent."""
    return {
        "id": agent.id,
        "name": agent.name,
        "type": agent.type.value,
        "description": agent.description,
        "system": agent.system,
        "model": json.dumps(asdict(agent.model)),
        "tools": list(agent.tools),
        "tool_rules": json.dumps([rule_to_json(rule) for rule in agent.tool_rules]),
        "tags": list(agent.tags),
        "timezone": agent.timezone,
        "metadata": json.dumps(dict(agent.metadata)),
        "compaction": json.dumps(asdict(agent.compaction)),
        "packaging": json.dumps(asdict(agent.packaging)),
        "message_buffer_autoclear": agent.message_buffer_autoclear,
        "response_format": json.dumps(response_format_to_json(agent.response_format)),
        "max_files_open": agent.max_files_open,
        "per_file_view_window_char_limit": agent.per_file_view_window_char_limit,
        "memory_agent_id": agent.memory_agent_id,
        "sleeptime_frequency": agent.sleeptime_frequency,
        "tends_agent_id": agent.tends_agent_id,
        "max_message_buffer_length": agent.buffer.longest if agent.buffer else 0,
        "min_message_buffer_length": agent.buffer.shortest if agent.buffer else 0,
    }


def to_agent(row: Mapping[str, Any]) -> Agent:
    """Returns the agent in a row."""
    return Agent(
        id=row["id"],
        name=row["name"],
        type=AgentType(row["type"]),
        system=row["system"],
        description=row["description"],
        model=_model(row["model"]),
        tools=tuple(row["tools"]),
        tool_rules=tuple(rule_from_json(rule) for rule in _array(row.get("tool_rules", []))),
        tags=tuple(row["tags"]),
        timezone=row["timezone"],
        metadata=_object(row["metadata"]),
        max_files_open=row["max_files_open"],
        per_file_view_window_char_limit=row["per_file_view_window_char_limit"],
        compaction=_compaction(row["compaction"]),
        # Answers stored by older releases lack these fields.
        packaging=MessagePackaging(**_object(row.get("packaging", {}))),
        message_buffer_autoclear=row.get("message_buffer_autoclear", False),
        response_format=response_format_from_json(_object(row.get("response_format", {}))),
        memory_agent_id=row.get("memory_agent_id", ""),
        sleeptime_frequency=row.get("sleeptime_frequency", 0),
        tends_agent_id=row.get("tends_agent_id", ""),
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
    )


def answer(row: Mapping[str, Any]) -> str:
    """Returns a row as JSON, to answer a repeated request; `to_agent` reads it."""
    plain = {
        key: value.isoformat() if isinstance(value, datetime) else value
        for key, value in row.items()
    }
    return json.dumps(plain)


def read_answer(value: Any) -> dict[str, Any]:
    """Returns the row of an `answer`."""
    return _object(value)


def _compaction(value: Any) -> CompactionSettings:
    stored = _object(value)
    if stored.get("model_settings") is not None:
        stored["model_settings"] = _model(stored["model_settings"])
    return CompactionSettings(**stored)


def _model(value: Any) -> ModelConfig:
    stored = _object(value)
    stored["fallback_models"] = tuple(stored.get("fallback_models", ()))
    return ModelConfig(**stored)


def _object(value: Any) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(value) if isinstance(value, str) else value
    return read


def _array(value: Any) -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = json.loads(value) if isinstance(value, str) else value
    return read


def _moment(value: datetime | str) -> datetime:
    return datetime.fromisoformat(value) if isinstance(value, str) else value

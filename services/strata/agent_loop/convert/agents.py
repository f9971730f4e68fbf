"""Agents and conversations between the contract and the domain; requests are checked here."""

from __future__ import annotations

import hashlib

from google.protobuf.message import Message as ProtoMessage

from strata.agent_loop.convert import checks
from strata.agent_loop.convert.agent_options import (
    compaction_from_proto,
    compaction_to_proto,
    compaction_violations,
    model_from_proto,
    model_to_proto,
    model_violations,
)
from strata.agent_loop.convert.runs import input_from_proto
from strata.agent_loop.convert.tool_rules import (
    rule_violations,
    rules_from_proto,
    rules_to_proto,
)
from strata.agent_loop.domain.agents import (
    BUILT_TYPES,
    DEFAULT_FILE_VIEW_CHARS,
    DEFAULT_MAX_FILES_OPEN,
    DEFAULT_TIMEZONE,
    Agent,
    AgentPatch,
    AgentType,
    Conversation,
    default_tools,
    merge_tools,
)
from strata.agent_loop.domain.commands import (
    CreateAgent,
    CreateConversation,
    ForkConversation,
    UpdateAgent,
)
from strata.agent_loop.domain.store import Request
from strata.agent_loop.domain.tool_rules import base_rules
from strata.agent_loop.prompts.base import base_prompt
from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.api.core_memory.v1 import block_service_pb2 as block_pb
from strata.shared.errors import FieldViolation, UnimplementedError
from strata.shared.ids import check_id, new_id

MAX_INITIAL_MESSAGES = 64
_MAX_FILES = 1_000
_MAX_VIEW = 1_000_000
_TYPES = {
    pb.AGENT_TYPE_UNSPECIFIED: AgentType.LETTA_V1,
    pb.AGENT_TYPE_LETTA_V1: AgentType.LETTA_V1,
    pb.AGENT_TYPE_MEMGPT_V2: AgentType.MEMGPT_V2,
    pb.AGENT_TYPE_MEMGPT: AgentType.MEMGPT,
    pb.AGENT_TYPE_SLEEPTIME: AgentType.SLEEPTIME,
    pb.AGENT_TYPE_REACT: AgentType.REACT,
    pb.AGENT_TYPE_WORKFLOW: AgentType.WORKFLOW,
    pb.AGENT_TYPE_VOICE_CONVO: AgentType.VOICE_CONVO,
    pb.AGENT_TYPE_VOICE_SLEEPTIME: AgentType.VOICE_SLEEPTIME,
}
_TYPES_BACK = {kind: value for value, kind in _TYPES.items()}


def create_from_proto(request: pb.CreateAgentRequest) -> CreateAgent:
    """Returns the agent to create, with the defaults of its type.

    Raises:
        InvalidArgumentError: Naming every wrong field.
        UnimplementedError: It asks for what this release cannot run.
    """
    checks.refuse(_create_violations(request))
    _refuse_unbuilt(request)
    agent_type = _TYPES[request.type]
    agent_id = new_id("agent")
    base = default_tools(agent_type) if _given(request, "include_base_tools", default=True) else ()
    tools = merge_tools(base, request.tools)
    rules = rules_from_proto(request.tool_rules)
    if request.include_base_tool_rules:
        rules = (*rules, *base_rules(tools, rules))
    agent = Agent(
        id=agent_id,
        name=request.name or f"agent-{agent_id[-8:]}",
        type=agent_type,
        system=request.system if request.HasField("system") else base_prompt(agent_type),
        description=request.description,
        model=model_from_proto(request.model),
        tools=tools,
        tool_rules=rules,
        tags=tuple(sorted(set(request.tags))),
        timezone=request.timezone or DEFAULT_TIMEZONE,
        metadata=dict(request.metadata),
        max_files_open=request.max_files_open or DEFAULT_MAX_FILES_OPEN,
        per_file_view_window_char_limit=(
            request.per_file_view_window_char_limit or DEFAULT_FILE_VIEW_CHARS
        ),
        compaction=compaction_from_proto(request.compaction),
    )
    violations: list[FieldViolation] = []
    initial = [
        input_from_proto(wire, f"initial_messages[{index}]", violations)
        for index, wire in enumerate(request.initial_messages)
    ]
    checks.refuse(violations)
    return CreateAgent(
        agent, _blocks(request), tuple(request.block_ids), initial, _request(request)
    )


def update_from_proto(request: pb.UpdateAgentRequest) -> UpdateAgent:
    """Returns the change of an agent.

    Raises:
        InvalidArgumentError: Naming every wrong field.
    """
    check_id(request.agent_id, "agent", field="agent_id")
    checks.refuse(_update_violations(request))
    patch = AgentPatch(
        agent_id=request.agent_id,
        name=_optional(request, "name"),
        description=_optional(request, "description"),
        system=_optional(request, "system"),
        model=model_from_proto(request.model) if request.HasField("model") else None,
        tools=merge_tools((), request.tools.names) if request.HasField("tools") else None,
        tool_rules=rules_from_proto(request.tool_rules) if request.set_tool_rules else None,
        tags=tuple(sorted(set(request.tags.names))) if request.HasField("tags") else None,
        timezone=_optional(request, "timezone"),
        metadata=dict(request.metadata),
        compaction=(
            compaction_from_proto(request.compaction) if request.HasField("compaction") else None
        ),
        max_files_open=(
            (request.max_files_open or DEFAULT_MAX_FILES_OPEN)
            if request.HasField("max_files_open")
            else None
        ),
        per_file_view_window_char_limit=(
            (request.per_file_view_window_char_limit or DEFAULT_FILE_VIEW_CHARS)
            if request.HasField("per_file_view_window_char_limit")
            else None
        ),
        expected_revision=request.expected_revision,
    )
    return UpdateAgent(patch, _request(request))


def conversation_from_proto(request: pb.CreateConversationRequest) -> CreateConversation:
    """Returns the conversation to start.

    Raises:
        InvalidArgumentError: Naming every wrong field.
    """
    check_id(request.agent_id, "agent", field="agent_id")
    checks.refuse(
        [
            *checks.request_id_violations(request.request_id),
            *checks.name_violations("title", request.title),
        ]
    )
    return CreateConversation(request.agent_id, request.title, _request(request))


def fork_from_proto(request: pb.ForkConversationRequest) -> ForkConversation:
    """Returns the conversation to fork.

    Raises:
        InvalidArgumentError: Naming every wrong field.
    """
    check_id(request.conversation_id, "conversation", field="conversation_id")
    if request.until_message_id:
        check_id(request.until_message_id, "message", field="until_message_id")
    checks.refuse(
        [
            *checks.request_id_violations(request.request_id),
            *checks.name_violations("title", request.title),
        ]
    )
    return ForkConversation(
        request.conversation_id, request.until_message_id, request.title, _request(request)
    )


def agent_to_proto(agent: Agent) -> pb.Agent:
    """Returns the contract's form of an agent."""
    wire = pb.Agent(
        id=agent.id,
        name=agent.name,
        description=agent.description,
        type=_TYPES_BACK[agent.type],
        system=agent.system,
        model=model_to_proto(agent.model),
        tools=agent.tools,
        tool_rules=rules_to_proto(agent.tool_rules),
        tags=agent.tags,
        timezone=agent.timezone,
        metadata=agent.metadata,
        default_conversation_id=agent.default_conversation_id,
        max_files_open=agent.max_files_open,
        per_file_view_window_char_limit=agent.per_file_view_window_char_limit,
        compaction=compaction_to_proto(agent.compaction),
        revision=agent.revision,
    )
    if agent.create_time is not None:
        wire.create_time.FromDatetime(agent.create_time)
    if agent.update_time is not None:
        wire.update_time.FromDatetime(agent.update_time)
    return wire


def conversation_to_proto(conversation: Conversation) -> pb.Conversation:
    """Returns the contract's form of a conversation."""
    wire = pb.Conversation(
        id=conversation.id,
        agent_id=conversation.agent_id,
        title=conversation.title,
        forked_from_id=conversation.forked_from_id,
    )
    if conversation.create_time is not None:
        wire.create_time.FromDatetime(conversation.create_time)
    return wire


def _create_violations(request: pb.CreateAgentRequest) -> list[FieldViolation]:
    found = checks.joined(
        [
            checks.request_id_violations(request.request_id),
            checks.name_violations("name", request.name),
            checks.text_violations("description", request.description, checks.MAX_DESCRIPTION),
            checks.text_violations("system", request.system, checks.MAX_SYSTEM),
            model_violations(request.model),
            checks.tool_violations("tools", request.tools),
            rule_violations("tool_rules", request.tool_rules),
            checks.tag_violations("tags", request.tags),
            checks.timezone_violations("timezone", request.timezone or DEFAULT_TIMEZONE),
            checks.pair_violations("metadata", request.metadata),
            compaction_violations(request.compaction),
            _file_violations(request),
        ]
    )
    if request.type not in _TYPES:
        found.append(FieldViolation("type", "is not a known agent type"))
    if request.without_blocks and (request.blocks or request.block_ids):
        found.append(FieldViolation("without_blocks", "contradicts blocks and block_ids"))
    if len(request.initial_messages) > MAX_INITIAL_MESSAGES:
        text = f"has more than {MAX_INITIAL_MESSAGES} messages"
        found.append(FieldViolation("initial_messages", text))
    return found


def _update_violations(request: pb.UpdateAgentRequest) -> list[FieldViolation]:
    found = checks.joined(
        [
            checks.request_id_violations(request.request_id),
            checks.name_violations("name", request.name),
            checks.text_violations("description", request.description, checks.MAX_DESCRIPTION),
            checks.text_violations("system", request.system, checks.MAX_SYSTEM),
            model_violations(request.model),
            checks.tool_violations("tools.names", request.tools.names),
            rule_violations("tool_rules", request.tool_rules),
            checks.tag_violations("tags.names", request.tags.names),
            checks.pair_violations("metadata", request.metadata),
            compaction_violations(request.compaction),
            _file_violations(request),
        ]
    )
    if request.HasField("name") and not request.name:
        found.append(FieldViolation("name", "must not be empty"))
    if request.HasField("timezone"):
        found.extend(checks.timezone_violations("timezone", request.timezone))
    if request.tool_rules and not request.set_tool_rules:
        found.append(FieldViolation("set_tool_rules", "must be true to replace the rules"))
    if request.expected_revision < 0:
        found.append(FieldViolation("expected_revision", "must not be negative"))
    return found


def _file_violations(
    request: pb.CreateAgentRequest | pb.UpdateAgentRequest,
) -> list[FieldViolation]:
    return [
        *checks.range_violations("max_files_open", request.max_files_open, 0, _MAX_FILES),
        *checks.range_violations(
            "per_file_view_window_char_limit",
            request.per_file_view_window_char_limit,
            0,
            _MAX_VIEW,
        ),
    ]


def _refuse_unbuilt(request: pb.CreateAgentRequest) -> None:
    agent_type = _TYPES[request.type]
    if agent_type not in BUILT_TYPES:
        raise _unbuilt(f"The loop of {agent_type} agents")
    if request.enable_sleeptime:
        raise _unbuilt("enable_sleeptime")
    if request.message_buffer_autoclear:
        raise _unbuilt("message_buffer_autoclear")


def _unbuilt(what: str) -> UnimplementedError:
    return UnimplementedError(f"{what} is not built in this release.", metadata={"what": what})


def _blocks(request: pb.CreateAgentRequest) -> tuple[block_pb.NewBlock, ...]:
    if request.blocks or request.block_ids or request.without_blocks:
        return tuple(request.blocks)
    return (block_pb.NewBlock(label="human"), block_pb.NewBlock(label="persona"))


def _request(
    request: (
        pb.CreateAgentRequest
        | pb.UpdateAgentRequest
        | pb.CreateConversationRequest
        | pb.ForkConversationRequest
    ),
) -> Request:
    bare = type(request)()
    bare.CopyFrom(request)  # type: ignore[arg-type]
    bare.ClearField("request_id")
    payload = type(request).DESCRIPTOR.full_name.encode() + b"\0"
    payload += bare.SerializeToString(deterministic=True)
    return Request(request.request_id, hashlib.sha256(payload).hexdigest())


def _optional(request: ProtoMessage, name: str) -> str | None:
    return str(getattr(request, name)) if request.HasField(name) else None


def _given(request: ProtoMessage, name: str, *, default: bool) -> bool:
    return bool(getattr(request, name)) if request.HasField(name) else default

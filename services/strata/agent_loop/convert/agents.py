"""Converts agents and conversations, and validates requests about them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from google.protobuf.message import Message as ProtoMessage

from strata.agent_loop.agents.memory_agents import (
    MAX_FREQUENCY,
    frequency_of,
    has_no_buffer,
    has_no_frequency,
    needs_no_memory_agent,
)
from strata.agent_loop.convert import checks
from strata.agent_loop.convert.agent_options import (
    compaction_from_proto,
    compaction_to_proto,
    compaction_violations,
    model_from_proto,
    model_to_proto,
    model_violations,
    packaging_from_proto,
    packaging_to_proto,
    packaging_violations,
)
from strata.agent_loop.convert.plain_fields import PlainFields
from strata.agent_loop.convert.response_formats import (
    response_format_from_proto,
    response_format_to_proto,
)
from strata.agent_loop.convert.runs import input_from_proto
from strata.agent_loop.convert.tool_rules import (
    rule_violations,
    rules_from_proto,
    rules_to_proto,
)
from strata.agent_loop.domain.agent.agents import (
    DEFAULT_TIMEZONE,
    Agent,
    AgentFilter,
    AgentPatch,
    Conversation,
    ListedAgent,
    merge_tools,
)
from strata.agent_loop.domain.agent.commands import (
    CreateAgent,
    CreateConversation,
    ForkConversation,
    UpdateAgent,
)
from strata.agent_loop.domain.agent.message_buffer import MAX_BUFFER, BufferLengths, buffer_lengths
from strata.agent_loop.domain.agent.types import AGENT_TYPES, TypeTraits
from strata.agent_loop.prompts.base import base_prompt
from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.api.agent_loop.v1 import group_service_pb2 as group_pb
from strata.api.core_memory.v1 import block_service_pb2 as block_pb
from strata.protocol.errors import FieldViolation
from strata.shared.agent_types import MEMORY_AGENT_TYPES, AgentType
from strata.shared.checks import Checks
from strata.shared.convert.enums import EnumTable
from strata.shared.idempotency.keys import RequestKey, digest_of, request_id_violations
from strata.shared.ids import check_id, new_id
from strata.shared.message_inputs import content_violations
from strata.shared.one_line import is_one_line
from strata.shared.response_formats import response_format_violations

MAX_INITIAL_MESSAGES = 64
MAX_LISTED_IDS = 500
"""Maximum number of ids of one request for a list of agents."""

_MAX_FILES = 1_000
_MAX_VIEW = 1_000_000
_TYPES = EnumTable(pb.AgentType, AgentType, default=AgentType.LETTA_V1)


def _external_id_violations(field: str, text: str) -> list[FieldViolation]:
    if is_one_line(text):
        return checks.text_violations(field, text, limit=200)
    return [FieldViolation(field, "must be one line without control characters")]


_PLAIN = PlainFields(
    {
        "description": partial(checks.text_violations, limit=checks.MAX_DESCRIPTION),
        "max_files_open": partial(checks.range_violations, low=0, high=_MAX_FILES),
        "per_file_view_window_char_limit": partial(checks.range_violations, low=0, high=_MAX_VIEW),
        "message_buffer_autoclear": None,
        "external_id": _external_id_violations,
    }
)


def create_from_proto(request: pb.CreateAgentRequest, prompt: str | None = None) -> CreateAgent:
    """Returns the agent to create, with the defaults of its type.

    Args:
        request: The request.
        prompt: The text of the prompt with the request's ``system_prompt_key``; None without one.

    Raises:
        InvalidArgumentError: Fields are wrong; the violations name all of them.
    """
    checks.refuse(_create_violations(request))
    agent_type = _TYPES.from_proto[request.type]
    agent_id = new_id("agent")
    traits = AGENT_TYPES[agent_type]
    tools = merge_tools(_base_tools(request, traits), request.tools)
    # The request was checked without the base tools.
    checks.refuse(checks.tool_count_violations("tools", tools))
    rules = rules_from_proto(request.tool_rules)
    if _field_or_default(request, "include_base_tool_rules", default=traits.base_tool_rules):
        rules = (*rules, *traits.default_rules(tools, rules))
    plain = _PLAIN.values(request)
    plain["message_buffer_autoclear"] |= traits.autoclears
    agent = Agent(
        id=agent_id,
        name=request.name or f"agent-{agent_id[-8:]}",
        type=agent_type,
        system=_system(request, agent_type, prompt),
        **plain,
        model=model_from_proto(request.model),
        tools=tools,
        tool_rules=rules,
        tags=tuple(sorted(set(request.tags))),
        timezone=request.timezone or DEFAULT_TIMEZONE,
        metadata=dict(request.metadata),
        compaction=compaction_from_proto(request.compaction),
        packaging=packaging_from_proto(request.packaging),
        response_format=response_format_from_proto(request.response_format),
        sleeptime_frequency=(
            frequency_of(agent_type, request.sleeptime_agent_frequency)
            if request.enable_sleeptime
            else 0
        ),
        buffer=(
            buffer_lengths(request.max_message_buffer_length, request.min_message_buffer_length)
            if traits.buffered
            else None
        ),
    )
    violations = [
        *content_violations("initial_messages", request.initial_messages),
        *(
            FieldViolation(f"initial_messages[{index}]", "must contain only text")
            for index, wire in enumerate(request.initial_messages)
            if any(part.HasField("image") for part in wire.parts)
        ),
    ]
    initial = [
        input_from_proto(wire, f"initial_messages[{index}]", violations)
        for index, wire in enumerate(request.initial_messages)
    ]
    checks.refuse(violations)
    return CreateAgent(
        agent,
        _blocks(request, traits),
        tuple(request.block_ids),
        initial if initial or request.without_initial_messages else None,
        request_of(request),
        request.enable_sleeptime,
    )


def filter_from_proto(request: pb.ListAgentsRequest) -> AgentFilter:
    """Returns which agents a list has.

    Raises:
        InvalidArgumentError: Naming every wrong id; INVALID_FIELD if there are too many.
    """
    id_checks = Checks()
    agent_ids = id_checks.ids(request.agent_ids, "agent", "agent_ids", most=MAX_LISTED_IDS)
    id_checks.done()
    return AgentFilter(tuple(request.tags), request.name_contains, tuple(agent_ids))


def update_from_proto(request: pb.UpdateAgentRequest) -> UpdateAgent:
    """Returns the change of an agent.

    Raises:
        InvalidArgumentError: Fields are wrong; the violations name all of them.
    """
    check_id(request.agent_id, "agent", field="agent_id")
    checks.refuse(_update_violations(request))
    patch = AgentPatch(
        agent_id=request.agent_id,
        **_PLAIN.changes(request),
        name=_optional(request, "name"),
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
        packaging=(
            packaging_from_proto(request.packaging) if request.HasField("packaging") else None
        ),
        response_format=(
            response_format_from_proto(request.response_format)
            if request.HasField("response_format")
            else None
        ),
        enable_sleeptime=(
            request.enable_sleeptime if request.HasField("enable_sleeptime") else None
        ),
        sleeptime_frequency=(
            request.sleeptime_agent_frequency
            if request.HasField("sleeptime_agent_frequency")
            else None
        ),
        max_buffer=(
            request.max_message_buffer_length
            if request.HasField("max_message_buffer_length")
            else None
        ),
        min_buffer=(
            request.min_message_buffer_length
            if request.HasField("min_message_buffer_length")
            else None
        ),
        expected_revision=request.expected_revision,
    )
    return UpdateAgent(patch, request_of(request))


def conversation_from_proto(request: pb.CreateConversationRequest) -> CreateConversation:
    """Returns the conversation to start.

    Raises:
        InvalidArgumentError: Fields are wrong; the violations name all of them.
    """
    check_id(request.agent_id, "agent", field="agent_id")
    checks.refuse(
        [
            *request_id_violations(request.request_id),
            *checks.name_violations("title", request.title),
            *_external_id_violations("external_id", request.external_id),
        ]
    )
    return CreateConversation(
        request.agent_id, request.title, request.external_id, request_of(request)
    )


def check_conversation_name(request: pb.GetConversationRequest) -> None:
    """Checks that a request names a conversation in one of two ways.

    Raises:
        InvalidArgumentError: It does not, or an id is malformed.
    """
    if request.conversation_id:
        check_id(request.conversation_id, "conversation", field="conversation_id")
        others = [name for name in ("agent_id", "external_id") if getattr(request, name)]
        checks.refuse(
            [FieldViolation(name, "must be empty beside conversation_id") for name in others]
        )
        return
    if not request.external_id:
        checks.refuse(
            [FieldViolation("conversation_id", "or agent_id and external_id are required")]
        )
    check_id(request.agent_id, "agent", field="agent_id")
    checks.refuse(_external_id_violations("external_id", request.external_id))


def fork_from_proto(request: pb.ForkConversationRequest) -> ForkConversation:
    """Returns the conversation to fork.

    Raises:
        InvalidArgumentError: Fields are wrong; the violations name all of them.
    """
    check_id(request.conversation_id, "conversation", field="conversation_id")
    if request.until_message_id:
        check_id(request.until_message_id, "message", field="until_message_id")
    checks.refuse(
        [
            *request_id_violations(request.request_id),
            *checks.name_violations("title", request.title),
        ]
    )
    return ForkConversation(
        request.conversation_id, request.until_message_id, request.title, request_of(request)
    )


def agent_to_proto(agent: Agent) -> pb.Agent:
    """Returns an agent as a proto."""
    wire = pb.Agent(
        id=agent.id,
        **_PLAIN.values(agent),
        name=agent.name,
        type=_TYPES.to_proto[agent.type],
        system=agent.system,
        model=model_to_proto(agent.model),
        tools=agent.tools,
        tool_rules=rules_to_proto(agent.tool_rules),
        tags=agent.tags,
        timezone=agent.timezone,
        metadata=agent.metadata,
        default_conversation_id=agent.default_conversation_id,
        compaction=compaction_to_proto(agent.compaction),
        packaging=packaging_to_proto(agent.packaging),
        response_format=response_format_to_proto(agent.response_format),
        enable_sleeptime=bool(agent.memory_agent_id),
        memory_agent_id=agent.memory_agent_id,
        sleeptime_agent_frequency=agent.sleeptime_frequency,
        tends_agent_id=agent.tends_agent_id,
        max_message_buffer_length=agent.buffer.longest if agent.buffer else 0,
        min_message_buffer_length=agent.buffer.shortest if agent.buffer else 0,
        revision=agent.revision,
    )
    if agent.create_time is not None:
        wire.create_time.FromDatetime(agent.create_time)
    if agent.update_time is not None:
        wire.update_time.FromDatetime(agent.update_time)
    return wire


def listed_agent_to_proto(agent: ListedAgent) -> pb.Agent:
    """Returns an agent as a proto with the fields of a list by name only."""
    wire = pb.Agent(
        id=agent.id,
        name=agent.name,
        description=agent.description,
        tends_agent_id=agent.tends_agent_id,
    )
    wire.create_time.FromDatetime(agent.create_time)
    return wire


def agent_from_proto(wire: pb.Agent) -> Agent:
    """Returns the domain form of an agent, without its keys and its metadata.

    Raises:
        KeyError: Its type is unknown.
    """
    return Agent(
        id=wire.id,
        **_PLAIN.values(wire),
        name=wire.name,
        type=_TYPES.from_proto[wire.type],
        system=wire.system,
        model=model_from_proto(wire.model),
        tools=tuple(wire.tools),
        tool_rules=rules_from_proto(wire.tool_rules),
        tags=tuple(wire.tags),
        timezone=wire.timezone,
        compaction=compaction_from_proto(wire.compaction),
        packaging=packaging_from_proto(wire.packaging),
        response_format=response_format_from_proto(wire.response_format),
        memory_agent_id=wire.memory_agent_id,
        sleeptime_frequency=wire.sleeptime_agent_frequency,
        tends_agent_id=wire.tends_agent_id,
        buffer=(
            BufferLengths(wire.max_message_buffer_length, wire.min_message_buffer_length)
            if wire.max_message_buffer_length
            else None
        ),
        revision=wire.revision,
    )


def conversation_to_proto(conversation: Conversation) -> pb.Conversation:
    """Returns a conversation as a proto."""
    wire = pb.Conversation(
        id=conversation.id,
        agent_id=conversation.agent_id,
        title=conversation.title,
        forked_from_id=conversation.forked_from_id,
        external_id=conversation.external_id,
    )
    if conversation.create_time is not None:
        wire.create_time.FromDatetime(conversation.create_time)
    return wire


def _create_violations(request: pb.CreateAgentRequest) -> list[FieldViolation]:
    violations = checks.joined(
        [
            request_id_violations(request.request_id),
            checks.name_violations("name", request.name),
            _PLAIN.violations(request),
            checks.text_violations("system", request.system, checks.MAX_SYSTEM),
            model_violations(request.model),
            checks.tool_violations("tools", request.tools),
            rule_violations("tool_rules", request.tool_rules),
            checks.tag_violations("tags", request.tags),
            checks.timezone_violations("timezone", request.timezone or DEFAULT_TIMEZONE),
            checks.pair_violations("metadata", request.metadata),
            compaction_violations(request.compaction),
            packaging_violations(request.packaging),
            response_format_violations(request),
        ]
    )
    if request.system_prompt_key and request.HasField("system"):
        violations.append(FieldViolation("system_prompt_key", "cannot be combined with system"))
    violations += _type_violations(request)
    if request.without_blocks and (request.blocks or request.block_ids):
        violations.append(
            FieldViolation("without_blocks", "cannot be combined with blocks and block_ids")
        )
    if request.without_initial_messages and request.initial_messages:
        violations.append(
            FieldViolation("without_initial_messages", "cannot be combined with initial_messages")
        )
    if len(request.initial_messages) > MAX_INITIAL_MESSAGES:
        text = f"has more than {MAX_INITIAL_MESSAGES} messages"
        violations.append(FieldViolation("initial_messages", text))
    return violations


def _type_violations(request: pb.CreateAgentRequest) -> list[FieldViolation]:
    if request.type not in _TYPES.from_proto:
        split = request.type == pb.AGENT_TYPE_SPLIT_THREAD
        what = "split_thread_agent is not supported" if split else "is not a known agent type"
        return [FieldViolation("type", f"{what}; the types are {', '.join(AgentType)}")]
    agent_type = _TYPES.from_proto[request.type]
    if AGENT_TYPES[agent_type].needs_sleeptime and not request.enable_sleeptime:
        return [FieldViolation("enable_sleeptime", f"must be true for a {agent_type}")]
    if request.enable_sleeptime and agent_type in MEMORY_AGENT_TYPES:
        return list(needs_no_memory_agent(agent_type).violations)
    violations = list(_buffer_violations(request, agent_type))
    if request.sleeptime_agent_frequency and not request.enable_sleeptime:
        violations.append(FieldViolation("sleeptime_agent_frequency", "needs enable_sleeptime"))
    elif request.sleeptime_agent_frequency and AGENT_TYPES[agent_type].buffered:
        violations += has_no_frequency(agent_type).violations
    violations += checks.range_violations(
        "sleeptime_agent_frequency", request.sleeptime_agent_frequency, 0, MAX_FREQUENCY
    )
    return violations


def _buffer_violations(
    request: pb.CreateAgentRequest, agent_type: AgentType
) -> Iterator[FieldViolation]:
    lengths = request.max_message_buffer_length, request.min_message_buffer_length
    if any(lengths) and not AGENT_TYPES[agent_type].buffered:
        yield from has_no_buffer(agent_type, *(bool(length) for length in lengths)).violations
    yield from _length_violations(request)
    problem = buffer_lengths(*lengths).problem
    if problem is not None:
        yield FieldViolation("min_message_buffer_length", problem)


def _length_violations(
    request: pb.CreateAgentRequest | pb.UpdateAgentRequest,
) -> Iterator[FieldViolation]:
    for name in ("max_message_buffer_length", "min_message_buffer_length"):
        yield from checks.range_violations(name, getattr(request, name), 0, MAX_BUFFER)


def _update_violations(request: pb.UpdateAgentRequest) -> list[FieldViolation]:
    violations = checks.joined(
        [
            request_id_violations(request.request_id),
            checks.name_violations("name", request.name),
            _PLAIN.violations(request),
            checks.text_violations("system", request.system, checks.MAX_SYSTEM),
            model_violations(request.model),
            checks.tool_violations("tools.names", request.tools.names),
            rule_violations("tool_rules", request.tool_rules),
            checks.tag_violations("tags.names", request.tags.names),
            checks.pair_violations("metadata", request.metadata),
            compaction_violations(request.compaction),
            packaging_violations(request.packaging),
            response_format_violations(request),
        ]
    )
    if request.HasField("name") and not request.name:
        violations.append(FieldViolation("name", "must not be empty"))
    if request.HasField("timezone"):
        violations.extend(checks.timezone_violations("timezone", request.timezone))
    if request.tool_rules and not request.set_tool_rules:
        violations.append(FieldViolation("set_tool_rules", "must be true to replace the rules"))
    if request.HasField("sleeptime_agent_frequency"):
        violations.extend(
            checks.range_violations(
                "sleeptime_agent_frequency", request.sleeptime_agent_frequency, 1, MAX_FREQUENCY
            )
        )
        if request.HasField("enable_sleeptime") and not request.enable_sleeptime:
            violations.append(FieldViolation("sleeptime_agent_frequency", "needs a memory agent"))
    violations.extend(_length_violations(request))
    if request.expected_revision < 0:
        violations.append(FieldViolation("expected_revision", "must not be negative"))
    return violations


def _system(request: pb.CreateAgentRequest, agent_type: AgentType, prompt: str | None) -> str:
    if request.HasField("system"):
        return request.system
    return base_prompt(agent_type) if prompt is None else prompt


def _base_tools(request: pb.CreateAgentRequest, traits: TypeTraits) -> tuple[str, ...]:
    if not _field_or_default(request, "include_base_tools", default=True):
        return ()
    return traits.tools_with_sleeptime if request.enable_sleeptime else traits.tools


def _blocks(request: pb.CreateAgentRequest, traits: TypeTraits) -> tuple[block_pb.NewBlock, ...]:
    if request.blocks or request.block_ids or request.without_blocks or not traits.sees_blocks:
        return tuple(request.blocks)
    return (block_pb.NewBlock(label="human"), block_pb.NewBlock(label="persona"))


def request_of(
    request: (
        pb.CreateAgentRequest
        | pb.UpdateAgentRequest
        | pb.CreateConversationRequest
        | pb.ForkConversationRequest
        | group_pb.CreateGroupRequest
        | group_pb.UpdateGroupRequest
    ),
) -> RequestKey:
    """Returns the key by which repetitions of a request are recognised."""
    request_copy = type(request)()
    request_copy.CopyFrom(request)  # type: ignore[arg-type]
    request_copy.ClearField("request_id")
    label = f"{type(request).DESCRIPTOR.full_name}\0"
    return RequestKey(request.request_id, digest_of(label, request_copy))


def _optional(request: ProtoMessage, name: str) -> str | None:
    return str(getattr(request, name)) if request.HasField(name) else None


def _field_or_default(request: ProtoMessage, name: str, *, default: bool) -> bool:
    return bool(getattr(request, name)) if request.HasField(name) else default

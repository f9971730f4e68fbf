"""Builds requests from the descriptors, with ids that a test chooses."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from strata.api.common.v1 import message_pb2

KINDS: Mapping[str, str] = {
    "agent_id": "agent",
    "agent_ids": "agent",
    "manager_agent_id": "agent",
    "conversation_id": "conversation",
    "block_id": "block",
    "block_ids": "block",
    "shared_block_ids": "block",
    "message_id": "message",
    "until_message_id": "message",
    "from_message_id": "message",
    "to_message_id": "message",
    "summary_message_id": "message",
    "run_id": "run",
    "exclude_run_id": "run",
    "approval_id": "approval",
    "archive_id": "archive",
    "archive_ids": "archive",
    "passage_id": "passage",
    "folder_id": "folder",
    "file_id": "file",
    "group_id": "group",
    "tool_id": "tool",
    "mcp_server_id": "mcp_server",
    "schedule_id": "schedule",
    "webhook_id": "webhook",
    "delivery_id": "delivery",
    "project_id": "project",
    "organization_id": "organization",
    "api_key_id": "key",
}
"""Name of a field to the prefix of the ids in it."""

# The fields of a request that exclude others: one of several ways to name an object, or a field
# that only some callers may set.
_LEFT_OUT: Mapping[str, frozenset[str]] = {
    "SendMessageRequest": frozenset({"group_id"}),
    "StartRunRequest": frozenset({"group_id"}),
    "ListRunsRequest": frozenset({"group_id"}),
    # Each kind of group has some of the remaining fields.
    "ManagerConfig": frozenset(
        {
            *("manager_agent_id", "termination_token", "sleeptime_agent_frequency"),
            *("max_message_buffer_length", "min_message_buffer_length"),
        }
    ),
    "GetAgentRequest": frozenset({"name"}),
    "GetConversationRequest": frozenset({"agent_id", "external_id"}),
    "GetBlockRequest": frozenset({"agent_id", "label", "show_detached"}),
    "ListBlocksRequest": frozenset({"show_deleted"}),
    "LintMemoryRequest": frozenset({"agent_id"}),
    "RevertBlockRequest": frozenset({"agent_id"}),
    "GetToolRequest": frozenset({"name"}),
    # The service looks up the agent only for a tool that uses its memory, and this request names
    # none.
    "RunToolRequest": frozenset({"source_code", "agent_id"}),
    "CreateAgentRequest": frozenset(
        {
            *("without_blocks", "model", "compaction", "tool_rules", "tools"),
            *("include_base_tool_rules", "enable_sleeptime", "message_buffer_autoclear"),
            # It excludes `system`.
            "system_prompt_key",
            # They need enable_sleeptime, or exclude initial_messages.
            *("sleeptime_agent_frequency", "without_initial_messages"),
            # They are fields of voice agents.
            *("max_message_buffer_length", "min_message_buffer_length"),
        }
    ),
    "UpdateAgentRequest": frozenset(
        {
            *("model", "compaction", "tool_rules", "set_tool_rules", "tools"),
            *("max_message_buffer_length", "min_message_buffer_length"),
        }
    ),
    "EditBlockRequest": frozenset({"origin"}),
    "NewPassage": frozenset({"origin", "embedding"}),
    "UpdatePassageRequest": frozenset({"origin"}),
    "DeletePassageRequest": frozenset({"origin"}),
    "RestorePassageRequest": frozenset({"origin"}),
    "ListMessagesRequest": frozenset(
        {
            *("conversation_id", "from_message_id", "to_message_id"),
            *("from_sequence", "to_sequence"),
        }
    ),
    "CompactConversationRequest": frozenset({"compaction"}),
    "PreviewCompactionRequest": frozenset({"compaction"}),
    "GetMemoryStatusRequest": frozenset({"agent_ids"}),
    "ExpandSummaryRequest": frozenset({"summary_message_id"}),
    "ExportMessagesRequest": frozenset({"conversation_id"}),
    "InsertPassageRequest": frozenset({"archive_id"}),
    "UploadPassagesRequest": frozenset({"archive_id", "skip_count"}),
    "ListPassagesRequest": frozenset({"archive_id"}),
    "SearchPassagesRequest": frozenset({"archive_ids"}),
    "ListTagsRequest": frozenset({"archive_id"}),
    "ListFilesRequest": frozenset({"agent_id"}),
    "CreateApiKeyRequest": frozenset({"scopes"}),
    # A secret has a separate form.
    "CreateWebhookRequest": frozenset({"secret"}),
    # A schedule has a cron expression or a start_time.
    "CreateScheduleRequest": frozenset({"start_time"}),
    "UpdateScheduleRequest": frozenset({"start_time"}),
    "CreateOrganizationKeyRequest": frozenset({"scopes"}),
    # Fields that only the server sets; and one of the ways to connect to the server.
    "McpServer": frozenset(
        {
            *("tools", "quarantined_tools", "url", "headers", "header_secrets", "bearer_secret"),
            *("environment_secrets", "oauth", "client_credentials", "oauth_client", "sign_in"),
        }
    ),
}
# Of a oneof the first field is set, or this one.
_CHOSEN: Mapping[str, str] = {"ResponseFormat": "json_schema"}
_NEVER = frozenset({"page_token", "expected_revision", "time_to_live_seconds", "embedding_model"})
_TEXTS: Mapping[str, str] = {
    "label": "human",
    "timezone": "UTC",
    "time_zone": "UTC",
    "cron": "0 9 * * *",
    "events": "run.completed",
    "url": "https://hook.example/hook",
    "parameters_json": "{}",
    "arguments_json": "{}",
    "schema_json": "{}",
    "media_type": "text/plain",
    "redirect_uri": "http://127.0.0.1:9/callback",
    "provider": "openai",
    "file_name": "notes/secrets.txt",
    "file_names": "notes/secrets.txt",
}
_NUMBERS: Mapping[str, int] = {
    "limit": 50,
    "page_size": 3,
    "top_k": 3,
    "bucket_seconds": 31_536_000,
}
# Only untrusted labels are accepted here.
_ENUMS: Mapping[str, int] = dict.fromkeys(("taint", "client_taint"), message_pb2.PROVENANCE_WEB)
_DEPTH = 4

Ids = Callable[[str], str]
"""Prefix to the id to use."""


def unknown(prefix: str) -> str:
    """Returns a well-formed id of no object."""
    return f"{prefix}-{uuid.uuid4()}"


def build(descriptor: Descriptor, ids: Ids) -> Any:
    """Returns a request with valid values in all fields."""
    message = message_factory.GetMessageClass(descriptor)()
    _fill(message, ids, _DEPTH)
    return message


def id_fields(message: Any, path: str = "") -> dict[str, tuple[Any, FieldDescriptor]]:
    """Returns the set fields of a request that hold ids, by their path."""
    fields: dict[str, tuple[Any, FieldDescriptor]] = {}
    for field, value in message.ListFields():
        if field.name in KINDS:
            fields[f"{path}{field.name}"] = (message, field)
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for inner in value if field.is_repeated else [value]:
                fields.update(id_fields(inner, f"{path}{field.name}."))
    return fields


def put(message: Any, field: FieldDescriptor, value: Any) -> None:
    """Sets a field; a list field gets this one element."""
    if field.is_repeated:
        message.ClearField(field.name)
        getattr(message, field.name).append(value)
    else:
        setattr(message, field.name, value)


def _fill(message: Any, ids: Ids, depth: int) -> None:
    left_out = _LEFT_OUT.get(message.DESCRIPTOR.name, frozenset()) | _NEVER
    for field in message.DESCRIPTOR.fields:
        group = field.containing_oneof
        wanted = _CHOSEN.get(message.DESCRIPTOR.name)
        first = group is not None and group.fields[0] is field
        chosen = group is None or (field.name == wanted if wanted else first)
        if field.name not in left_out and chosen:
            _set(message, field, ids, depth)


def _set(message: Any, field: FieldDescriptor, ids: Ids, depth: int) -> None:
    if field.message_type is not None:
        _set_message(message, field, ids, depth)
        return
    value = _value(field, ids)
    if field.is_repeated:
        getattr(message, field.name).append(value)
    else:
        setattr(message, field.name, value)


def _set_message(message: Any, field: FieldDescriptor, ids: Ids, depth: int) -> None:
    kind = field.message_type
    assert kind is not None
    if kind.GetOptions().map_entry:
        getattr(message, field.name)["key"] = "value"
    elif kind.full_name == "google.protobuf.Timestamp":
        past = field.name in {"create_time", "start_time"}
        getattr(message, field.name).FromSeconds(1_700_000_000 if past else 4_000_000_000)
    elif depth > 0:
        inner = getattr(message, field.name)
        if field.is_repeated:
            inner = inner.add()
        else:
            inner.SetInParent()
        _fill(inner, ids, depth - 1)


def _value(field: FieldDescriptor, ids: Ids) -> Any:
    if field.name in KINDS:
        return ids(KINDS[field.name])
    match field.type:
        case FieldDescriptor.TYPE_STRING:
            return _TEXTS.get(field.name, f"{field.name}-{uuid.uuid4().hex[:8]}")
        case FieldDescriptor.TYPE_BYTES:
            return b"bytes"
        case FieldDescriptor.TYPE_BOOL:
            return True
        case FieldDescriptor.TYPE_DOUBLE | FieldDescriptor.TYPE_FLOAT:
            return 0.5
        case FieldDescriptor.TYPE_ENUM:
            assert field.enum_type is not None
            return _ENUMS.get(field.name, field.enum_type.values[1].number)
        case _:
            return _NUMBERS.get(field.name, 1)


def absurdities(field: FieldDescriptor) -> list[Any]:
    """Returns values that the type of a field allows and no client should send."""
    match field.type:
        case FieldDescriptor.TYPE_STRING:
            return ["\0", "a\0b", "\u202e\U0001f9e8", "x" * 300_000, "%s {0} ' -- \\", " "]
        case FieldDescriptor.TYPE_BYTES:
            return [b"\0", b"\xff" * 300_000]
        case FieldDescriptor.TYPE_DOUBLE | FieldDescriptor.TYPE_FLOAT:
            return [float("nan"), float("inf"), -1.0, 1e300]
        case FieldDescriptor.TYPE_ENUM:
            return [-1, 999]
        case FieldDescriptor.TYPE_INT32:
            return [-1, -(2**31), 2**31 - 1]
        case FieldDescriptor.TYPE_INT64:
            return [-1, -(2**63), 2**63 - 1]
        case _:
            return []


def places(message: Any, path: str = "") -> dict[str, tuple[Any, FieldDescriptor]]:
    """Returns every leaf field of a request and of its set messages, by path."""
    fields: dict[str, tuple[Any, FieldDescriptor]] = {}
    for field in message.DESCRIPTOR.fields:
        if field.message_type is None:
            fields[f"{path}{field.name}"] = (message, field)
        elif field.message_type.GetOptions().map_entry:
            continue
        else:
            value = getattr(message, field.name)
            inner = list(value) if field.is_repeated else [value] * message.HasField(field.name)
            for place in inner:
                fields.update(places(place, f"{path}{field.name}."))
    return fields


def holder_of(message: Any, path: str) -> Any:
    """Returns the message that has the last field of a path; creates missing ones."""
    *inner, _ = path.split(".")
    for name in inner:
        field = message.DESCRIPTOR.fields_by_name[name]
        if field.is_repeated:
            message = getattr(message, name).add()
        else:
            message = getattr(message, name)
            message.SetInParent()
    return message


def text_fields(
    descriptor: Descriptor, path: str = "", seen: frozenset[str] = frozenset()
) -> Iterator[tuple[str, FieldDescriptor]]:
    for field in descriptor.fields:
        inner = field.message_type
        if inner is not None and inner.full_name not in seen:
            yield from text_fields(inner, f"{path}{field.name}.", seen | {inner.full_name})
        elif field.type == FieldDescriptor.TYPE_STRING:
            yield f"{path}{field.name}", field

"""Reads and writes recording files, and converts recordings from protos.

Files are untrusted: their size is limited, they are parsed strictly, and nothing is executed.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

from google.protobuf import json_format
from google.protobuf.timestamp_pb2 import Timestamp

from strata.agent_loop.convert.agents import agent_from_proto, agent_to_proto
from strata.agent_loop.convert.messages import message_to_proto, messages_from_proto
from strata.agent_loop.convert.runs import digest_to_proto
from strata.agent_loop.domain.model.chat import ModelSettings, ToolSchema
from strata.agent_loop.domain.model.errors import ModelErrorKind
from strata.agent_loop.domain.ports import ArchivalStats
from strata.agent_loop.domain.run.request_digest import RequestDigest, SystemChange
from strata.agent_loop.domain.run.runs import DEFAULT_MAX_STEPS
from strata.agent_loop.domain.tools import Tool, ToolSet
from strata.agent_loop.replay.recording import (
    FORMAT,
    MAX_RECORDING_BYTES,
    VERSION,
    RecordedEnd,
    RecordedStep,
    RecordedTurn,
    Recording,
    RequestText,
    RunCall,
    SentRequest,
    ShownMemory,
)
from strata.api.agent_loop.v1 import recording_pb2 as pb
from strata.api.common.v1 import run_event_pb2
from strata.protocol.errors import InvalidArgumentError, StrataError
from strata.shared.convert.memory_edits import edits_from_proto, edits_to_proto
from strata.shared.convert.messages import labels_from_proto, labels_to_proto
from strata.shared.convert.runs import STOP_REASONS
from strata.shared.convert.usage import usage_from_proto, usage_to_proto
from strata.shared.ids import check_id
from strata.shared.json_text import JsonTextError, encodable_text, parse_json, parse_request_json
from strata.shared.provenance import Provenance, taint_of
from strata.shared.tool_catalogue import ToolEffect

_MAX_STEPS = 10_000


def recording_to_json(recording: Recording) -> bytes:
    """Returns the JSON form of a recording, in UTF-8."""
    wire = _to_proto(recording)
    value = json_format.MessageToDict(wire, preserving_proto_field_name=True)
    return json.dumps(value, ensure_ascii=False, indent=1).encode()


def recording_from_json(data: bytes) -> Recording:
    """Returns the recording in a file.

    Raises:
        InvalidArgumentError: The file is not a recording, or has another version; the message says
            why.
    """
    if len(data) > MAX_RECORDING_BYTES:
        raise _unreadable(f"it is larger than {MAX_RECORDING_BYTES // 1024 // 1024} MiB")
    try:
        value = parse_request_json(data)
    except JsonTextError as error:
        raise _unreadable(f"it is not JSON: {error}") from None
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise _unreadable(f'its "format" is not "{FORMAT}"')
    if value.get("version") != VERSION:
        raise _unreadable(
            f"it has version {value.get('version')!r}; this build reads version {VERSION}"
        )
    try:
        wire = json_format.ParseDict(value, pb.RunRecording())
    except json_format.ParseError as error:
        raise _unreadable(str(error)) from None
    try:
        return _from_proto(wire)
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, StrataError) as error:
        raise _unreadable(f"it has wrong values: {error}") from None


def turn_from_proto(wire: pb.RecordedTurn) -> RecordedTurn:
    """Returns the request of a recorded run."""
    return RecordedTurn(
        run_id=wire.run_id,
        agent_id=wire.agent_id,
        conversation_id=wire.conversation_id,
        max_steps=wire.max_steps or DEFAULT_MAX_STEPS,
        accept_time=wire.accept_time.ToDatetime(tzinfo=UTC),
        stream_tokens=wire.stream_tokens,
        group_id=wire.group_id,
        record_only=wire.record_only,
        reads_transcript=wire.reads_transcript,
        attempts=wire.attempts,
    )


def digest_from_proto(wire: run_event_pb2.RequestDigest) -> RequestDigest:
    """Returns the digest of a request.

    Raises:
        ValueError: The ranges of its window are malformed.
    """
    pairs = list(zip(wire.window[::2], wire.window[1::2], strict=True))
    if any(not 0 <= low <= high for low, high in pairs):
        raise ValueError("the ranges of a window are not ranges")
    change = None
    if wire.HasField("system_change"):
        change = system_change_from_proto(wire.system_change)
    return RequestDigest(
        wire.system,
        wire.options,
        wire.messages,
        tuple(wire.window),
        wire.bytes_per_token,
        change,
    )


def system_change_from_proto(wire: run_event_pb2.SystemChange) -> SystemChange:
    """Returns a change of a system message."""
    return SystemChange(wire.before, wire.prefix_chars, wire.suffix_chars, wire.removed)


def end_from_proto(wire: run_event_pb2.RunFinished) -> RecordedEnd:
    """Returns how a run ended.

    Raises:
        ValueError: The stop reason is unknown.
    """
    if wire.stop_reason not in STOP_REASONS.from_proto:
        raise ValueError("the run has no end")
    return RecordedEnd(
        STOP_REASONS.from_proto[wire.stop_reason],
        wire.step_count,
        usage_from_proto(wire.usage),
        wire.error.reason,
        wire.error.message,
    )


def _unreadable(why: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"The file is not a recording that can be replayed: {why}.")


def _to_proto(recording: Recording) -> pb.RunRecording:
    turn, end = recording.turn, recording.end
    texts = _Texts()
    wire = pb.RunRecording(
        format=FORMAT,
        version=VERSION,
        build=recording.build,
        turn=pb.RecordedTurn(
            run_id=turn.run_id,
            agent_id=turn.agent_id,
            conversation_id=turn.conversation_id,
            max_steps=turn.max_steps,
            stream_tokens=turn.stream_tokens,
            group_id=turn.group_id,
            record_only=turn.record_only,
            reads_transcript=turn.reads_transcript,
            attempts=turn.attempts,
        ),
        agent=agent_to_proto(recording.agent),
        models=map(_model_to_proto, recording.models),
        tools=map(_tool_to_proto, recording.tools.tools),
        window=map(message_to_proto, recording.window),
        inputs=map(message_to_proto, recording.inputs),
        system=encodable_text(recording.system),
        message_count=recording.message_count,
        metadata_stale=recording.metadata_stale,
        archival=pb.RecordedArchival(
            passage_count=recording.archival.passage_count,
            tags=recording.archival.tags,
            more_tags=recording.archival.more_tags,
        ),
        steps=[_step_to_proto(step, texts) for step in recording.steps],
        finished=run_event_pb2.RunFinished(
            stop_reason=STOP_REASONS.to_proto[end.stop_reason],
            step_count=end.step_count,
            usage=usage_to_proto(end.usage),
        ),
        notes=recording.notes,
    )
    if end.reason or end.message:
        wire.finished.error.reason, wire.finished.error.message = end.reason, end.message
    wire.turn.accept_time.FromDatetime(turn.accept_time)
    if recording.record_time is not None:
        wire.record_time.FromDatetime(recording.record_time)
    wire.texts.extend(texts.texts)
    return wire


class _Texts:
    """Stores each text of the requests once, since the requests of a run share most texts."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._index_of: dict[str, int] = {}

    def place(self, text: str) -> int:
        """Returns the position of a text."""
        if text not in self._index_of:
            self._index_of[text] = len(self.texts)
            self.texts.append(encodable_text(text))
        return self._index_of[text]


def _step_to_proto(step: RecordedStep, texts: _Texts) -> pb.RecordedStep:
    wire = pb.RecordedStep(
        step=step.number,
        summaries=map(message_to_proto, step.summaries),
        summary_usage=map(usage_to_proto, step.summary_usage),
        messages=map(message_to_proto, step.messages),
        calls=[
            pb.RecordedCall(
                tool_call_id=call.tool_call_id,
                name=call.name,
                arguments=call.arguments,
                memory_edits=edits_to_proto(call.memory_edits),
                duration_ms=call.duration_ms,
            )
            for call in step.calls
        ],
        memory=pb.RecordedMemory(
            section=encodable_text(step.memory.section),
            has_folders=step.memory.has_folders,
            taint=labels_to_proto(step.memory.taint),
        ),
        model=step.model,
        refusals=[kind.value for kind in step.refusals],
    )
    if step.memory.last_modified is not None:
        wire.memory.last_modified_time.FromDatetime(step.memory.last_modified)
    if step.request is not None:
        model_request = wire.request
        model_request.digest.CopyFrom(digest_to_proto(step.request.digest))
        model_request.start_ms = step.request.start_ms
        text = step.request.text
        if text.system is not None:
            model_request.system = texts.place(text.system)
        if text.options is not None:
            model_request.options = texts.place(text.options)
        model_request.has_messages = text.messages is not None
        model_request.messages.extend(map(texts.place, text.messages or ()))
    return wire


def _model_to_proto(settings: ModelSettings) -> pb.RecordedModel:
    return pb.RecordedModel(
        handle=settings.handle,
        endpoint_type=settings.endpoint_type,
        model=settings.model,
        context_window=settings.context_window,
        max_tokens=settings.max_tokens,
        images=settings.images,
        structured_tools=settings.structured_tools,
        parallel_tool_calls=settings.parallel_tool_calls,
    )


def _tool_to_proto(tool: Tool) -> pb.RecordedTool:
    return pb.RecordedTool(
        name=tool.name,
        description=tool.schema.description,
        parameters_json=json.dumps(dict(tool.schema.parameters), ensure_ascii=False),
        strict=tool.schema.strict,
        effect=tool.effect.value,
        keyed=tool.keyed,
        requires_approval=tool.requires_approval,
        version=tool.version,
        returns_from="" if tool.returns_from is None else tool.returns_from.value,
        by_client=tool.by_client,
        return_char_limit=tool.return_char_limit,
    )


def _from_proto(wire: pb.RunRecording) -> Recording:
    check_id(wire.agent.id, "agent", field="agent.id")
    check_id(wire.turn.run_id, "run", field="turn.run_id")
    if not (wire.inputs and wire.models) or len(wire.steps) > _MAX_STEPS:
        raise ValueError("it has no inputs, no model, or too many steps")
    return Recording(
        turn=turn_from_proto(wire.turn),
        agent=agent_from_proto(wire.agent),
        models=tuple(map(_model_from_proto, wire.models)),
        tools=ToolSet(tuple(map(_tool_from_proto, wire.tools))),
        window=messages_from_proto(wire.window),
        inputs=messages_from_proto(wire.inputs),
        system=wire.system,
        message_count=wire.message_count,
        archival=ArchivalStats(
            wire.archival.passage_count, list(wire.archival.tags), wire.archival.more_tags
        ),
        steps=_steps_from_proto(wire),
        end=end_from_proto(wire.finished),
        metadata_stale=wire.metadata_stale,
        build=wire.build,
        record_time=_moment(wire.record_time) if wire.HasField("record_time") else None,
        notes=list(wire.notes),
    )


def _steps_from_proto(wire: pb.RunRecording) -> tuple[RecordedStep, ...]:
    texts = list(wire.texts)
    # The requests of a run share most texts; each text is parsed once.
    parsed: set[int] = set()
    return tuple(_step_from_proto(step, texts, parsed) for step in wire.steps)


def _step_from_proto(wire: pb.RecordedStep, texts: list[str], parsed: set[int]) -> RecordedStep:
    memory = wire.memory
    return RecordedStep(
        wire.step,
        wire.model,
        _request_from_proto(wire.request, texts, parsed) if wire.HasField("request") else None,
        ShownMemory(
            memory.section,
            _moment(memory.last_modified_time) if memory.HasField("last_modified_time") else None,
            memory.has_folders,
            taint_of(labels_from_proto(memory.taint)),
        ),
        messages_from_proto(wire.summaries),
        tuple(map(usage_from_proto, wire.summary_usage)),
        messages_from_proto(wire.messages),
        tuple(
            RunCall(
                call.tool_call_id,
                call.name,
                call.arguments,
                edits_from_proto(call.memory_edits),
                call.duration_ms,
            )
            for call in wire.calls
        ),
        tuple(map(ModelErrorKind, wire.refusals)),
    )


def _request_from_proto(
    wire: pb.RecordedRequest, texts: list[str], parsed: set[int]
) -> SentRequest:
    indices = [*wire.messages, wire.system, wire.options]
    if any(not 0 <= index < max(1, len(texts)) for index in indices):
        raise ValueError("a request names a text that does not exist")
    options = texts[wire.options] if wire.HasField("options") else None
    messages = tuple(texts[index] for index in wire.messages) if wire.has_messages else None
    shown = [wire.options] if options is not None else []
    shown += wire.messages if messages is not None else []
    for index in set(shown) - parsed:
        parse_json(texts[index])
    parsed.update(shown)
    return SentRequest(
        digest_from_proto(wire.digest),
        wire.start_ms,
        RequestText(
            texts[wire.system] if wire.HasField("system") else None,
            options,
            messages,
        ),
    )


def _model_from_proto(wire: pb.RecordedModel) -> ModelSettings:
    if wire.context_window <= 0:
        raise ValueError("a model has no context window")
    return ModelSettings(
        wire.handle,
        wire.endpoint_type,
        wire.model,
        context_window=wire.context_window,
        max_tokens=wire.max_tokens if wire.HasField("max_tokens") else None,
        images=wire.images,
        structured_tools=wire.structured_tools,
        parallel_tool_calls=wire.parallel_tool_calls,
    )


def _tool_from_proto(wire: pb.RecordedTool) -> Tool:
    parameters = parse_json(wire.parameters_json)
    if not isinstance(parameters, dict) or not isinstance(parameters.get("properties", {}), dict):
        raise TypeError(f"the schema of {wire.name} is not a JSON schema of an object")
    return Tool(
        ToolSchema(wire.name, wire.description, parameters, strict=wire.strict),
        effect=ToolEffect(wire.effect),
        keyed=wire.keyed,
        requires_approval=wire.requires_approval,
        version=wire.version,
        returns_from=Provenance(wire.returns_from) if wire.returns_from else None,
        by_client=wire.by_client,
        return_char_limit=wire.return_char_limit,
    )


def _moment(wire: Timestamp) -> datetime:
    return wire.ToDatetime(tzinfo=UTC)

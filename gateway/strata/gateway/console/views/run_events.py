"""The stored events of a run, in the order in which they happened."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from starlette.responses import Response

from strata.api.common.v1 import message_pb2, run_event_pb2
from strata.api.gateway.v1 import run_service_pb2 as pb
from strata.gateway.console.form_values import MAX_INT64, whole_number
from strata.gateway.console.formats import seconds, tokens
from strata.gateway.console.visits import ViewRoute, Visit
from strata.shared.convert.enums import enum_name
from strata.shared.tool_returns import result_of
from strata.shared.turn_texts import ending_sentence, whole_arguments

_PAGE = 100


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event as a page shows it.

    Attributes:
        sequence: Position in the log of the run.
        elapsed_ms: Milliseconds since the run was accepted.
        title: Description of the event.
        detail: More of it on one line.
        texts: Texts that belong to it, by heading.
        taint: Labels of the untrusted content in it.
        member: The member of a group that did it; empty outside groups.
        failed: True for something that went wrong.
    """

    sequence: int
    elapsed_ms: int
    title: str
    detail: str = ""
    texts: list[tuple[str, str]] = field(default_factory=list)
    taint: list[message_pb2.Provenance.ValueType] = field(default_factory=list)
    member: str = ""
    failed: bool = False


async def list_events(visit: Visit) -> Response:
    """Shows a page of the stored events of a run."""
    run_id = visit.argument("run_id")
    after = whole_number(
        visit.query("after"), "after", "The events cannot be shown.", most=MAX_INT64
    )
    run = (await visit.services.runs.GetRun(pb.GetRunRequest(run_id=run_id))).run
    last = min(run.last_sequence, after + _PAGE)
    entries = [
        entry_of(event) for event in await stored_events(visit, run_id, after=after, last=last)
    ]
    return visit.page(
        "runs/events.html",
        run=run,
        entries=entries,
        after=after,
        next_after=last if last < run.last_sequence else 0,
    )


async def stored_events(
    visit: Visit, run_id: str, *, after: int, last: int
) -> list[run_event_pb2.RunEvent]:
    """Returns the stored events of a run after a sequence, up to another one.

    Does not wait for events of a run under way.
    """
    if after >= last:
        return []
    request = pb.StreamRunRequest(
        run_id=run_id, after_sequence=after, stream_tokens=False, send_message_as_text=False
    )
    events: list[run_event_pb2.RunEvent] = []
    call = visit.services.runs.StreamRun(request)
    try:
        async for response in call:
            if response.event.sequence:
                events.append(response.event)
            if response.event.sequence >= last:
                break
    finally:
        call.cancel()
    return events


def entry_of(event: run_event_pb2.RunEvent) -> EventRow:
    """Returns a stored event as a page shows it."""
    description = _described(event)
    return EventRow(
        sequence=event.sequence,
        elapsed_ms=event.elapsed_ms,
        title=description.title,
        detail=description.detail,
        texts=[(heading, text) for heading, text in description.texts if text],
        taint=list(description.taint),
        member=event.member.agent_name,
        failed=description.failed,
    )


class _Description(NamedTuple):
    """The description of an event; the fields are as in `EventRow`."""

    title: str
    detail: str = ""
    texts: Sequence[tuple[str, str]] = ()
    taint: Iterable[message_pb2.Provenance.ValueType] = ()
    failed: bool = False


def _described(event: run_event_pb2.RunEvent) -> _Description:
    kind = event.WhichOneof("event") or ""
    match kind:
        case "run_started":
            return _Description("Run started", f"attempt {event.run_started.attempt}")
        case "step_started":
            step = event.step_started
            return _Description(f"Step {step.step}: model called", step.model, taint=step.taint)
        case "step_restarted":
            restarted = event.step_restarted
            title = "Step given up" if restarted.given_up else "Model called again"
            return _Description(title, restarted.reason, failed=True)
        case "tool_started":
            tool = event.tool_started
            texts = [("Arguments", whole_arguments(tool.arguments))]
            return _Description(f"Tool {tool.name} started", texts=texts)
        case "tool_finished":
            return _tool_finished(event.tool_finished)
        case "message_stored":
            return _message_stored(event.message_stored.message)
        case "approval_requested":
            calls = event.approval_requested.approval.tool_calls
            texts = [(call.name, whole_arguments(call.arguments)) for call in calls]
            return _Description("Approval requested", f"{len(calls)} calls", texts)
        case "window_compacted":
            compacted = event.window_compacted
            detail = f"{compacted.tokens_before:,} to {compacted.tokens_after:,} tokens"
            return _Description("Window compacted", detail, _parts_of(compacted.summary))
        case "run_finished":
            return _ended("Run ended", event.run_finished)
        case "turn_started":
            detail = "picks the next speaker" if event.turn_started.manager else ""
            return _Description(f"Turn {event.member.turn} started", detail)
        case "turn_finished":
            return _ended(f"Turn {event.member.turn} ended", event.turn_finished)
    return _Description(kind.replace("_", " "))


def _tool_finished(finished: run_event_pb2.ToolFinished) -> _Description:
    returned = finished.tool_return
    texts = [("Return", result_of(returned.content))]
    texts += [("Printed", "\n".join(returned.stdout)), ("Errors", "\n".join(returned.stderr))]
    texts += [(f"Edit of {edit.label}", edit.diff) for edit in finished.memory_edits]
    status = enum_name(message_pb2.ToolStatus, returned.status)
    return _Description(
        f"Tool {returned.name} ended",
        f"{status} after {seconds(finished.duration_ms)}",
        texts,
        taint=dict.fromkeys([returned.provenance, *returned.taint]),
        failed=returned.status != message_pb2.TOOL_STATUS_OK,
    )


def _message_stored(message: message_pb2.Message) -> _Description:
    role = enum_name(message_pb2.Role, message.role)
    return _Description(f"Message stored: {role}", tokens(message.usage), _parts_of(message))


def _parts_of(message: message_pb2.Message) -> list[tuple[str, str]]:
    return [_part_text(part) for part in message.parts]


def _part_text(part: message_pb2.Part) -> tuple[str, str]:
    match part.WhichOneof("content"):
        case "text":
            return "Text", part.text.text
        case "image":
            return "Image", part.image.alt_text or part.image.media_type
        case "reasoning":
            return "Reasoning", part.reasoning.text
        case "tool_call":
            return f"Call of {part.tool_call.name}", whole_arguments(part.tool_call.arguments)
        case "tool_return":
            return f"Return of {part.tool_return.name}", result_of(part.tool_return.content)
        case "summary":
            return "Summary", part.summary.text
        case _:
            return "", ""


def _ended(
    title: str, ending: run_event_pb2.RunFinished | run_event_pb2.TurnFinished
) -> _Description:
    reason = enum_name(run_event_pb2.StopReason, ending.stop_reason)
    failed = bool(ending.error.message or ending.error.reason)
    detail = ", ".join(filter(None, (reason, tokens(ending.usage))))
    texts = [("Why", ending_sentence(ending))] if failed else []
    return _Description(title, detail, texts, ending.taint, failed)


VIEWS = (ViewRoute("/runs/{run_id}/events", list_events),)

"""Follows a run, and turns its events into changes of the page that shows it.

The browser gets a list of operations for each event. Those that put an element replace the one with
the same id, so that a browser which lost its connection can follow the run from its beginning
again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

from strata.api.common.v1 import message_pb2, run_event_pb2
from strata.api.gateway.v1 import run_service_pb2 as pb
from strata.gateway.console.transcript import Transcript
from strata.protocol.errors import StrataError
from strata.shared.turn_texts import STOP_SENTENCES, ended_well, ending_sentence

Operation = Mapping[str, Any]
Render = Callable[..., str]

_KEEP_ALIVE_S = 15.0
_KEEP_ALIVE = b": waiting\n\n"
_MACROS = "chat/live.html"


def put(parent: str, element: str, html: str) -> Operation:
    """Returns the operation that puts an element into its parent, or replaces it there.

    Args:
        parent: Id of the parent.
        element: Id of the element.
        html: The element.
    """
    return {"op": "put", "parent": parent, "id": element, "html": html}


def add_text(element: str, text: str) -> Operation:
    """Returns the operation that adds text to the end of an element."""
    return {"op": "text", "id": element, "text": text}


def remove(element: str) -> Operation:
    """Returns the operation that removes an element."""
    return {"op": "remove", "id": element}


class RunView:
    """Turns the events of one run into operations on its element in the page.

    Args:
        run_id: The run.
        render: Renders a template.
        images: Ids of the images that the page sent, which it shows once they are stored.
    """

    def __init__(self, run_id: str, render: Render, images: Sequence[str] = ()) -> None:
        self._run = f"run-{run_id}"
        self._messages = f"{self._run}-messages"
        self._run_id = run_id
        self._render = render
        self._images = [message_pb2.ImagePart(image_id=image_id) for image_id in images]
        self._transcript = Transcript()
        self._element_ids: set[str] = set()
        self._calls: dict[tuple[str, int], str] = {}
        self._known_calls: dict[str, tuple[str, str]] = {}
        self._handlers: Mapping[str, Callable[[Any], Iterator[Operation]]] = {
            "run_started": self._run_started,
            "step_started": self._step_started,
            "text_delta": lambda delta: self._delta(delta, "text"),
            "reasoning_delta": lambda delta: self._delta(delta, "reasoning"),
            "tool_call_delta": self._call_delta,
            "text_snapshot": self._snapshot,
            "step_restarted": self._step_restarted,
            "tool_started": self._tool_started,
            "tool_finished": self._tool_finished,
            "message_stored": lambda event: self._stored(event.message),
            "approval_requested": self._approval_requested,
            "window_compacted": self._compacted,
            "run_finished": self._finished,
        }

    def operations(self, event: run_event_pb2.RunEvent) -> list[Operation]:
        """Returns the operations of an event; none for events that are not shown."""
        kind = event.WhichOneof("event")
        handler = self._handlers.get(kind or "")
        return [] if handler is None else list(handler(getattr(event, kind or "")))

    def failed(self, error: StrataError) -> list[Operation]:
        """Returns the operations for a stream that ended with an error."""
        return [*self._ended(run_event_pb2.RunFinished(), error.message, well=False)]

    def _html(self, part: str, **values: Any) -> str:
        return self._render(
            _MACROS, part=part, transcript=self._transcript, run_id=self._run_id, **values
        )

    def _status(self, text: str) -> Iterator[Operation]:
        yield put(self._run, f"{self._run}-status", self._html("status", text=text))

    def _run_started(self, event: run_event_pb2.RunStarted) -> Iterator[Operation]:
        yield from self._status("Reading memory")
        if self._images:
            html = self._html("input_images", images=self._images)
            yield put(f"{self._run}-input", f"{self._run}-images", html)
        for message_id in event.input_message_ids[-1:]:
            html = self._html("about_input", message_id=message_id)
            yield put(f"{self._run}-input", f"{message_id}-about", html)

    def _step_started(self, event: run_event_pb2.StepStarted) -> Iterator[Operation]:
        yield from self._status(f"{event.model or 'The model'} is thinking")

    def _delta(self, delta: Any, kind: str) -> Iterator[Operation]:
        yield from self._message(delta.message_id)
        element = f"{delta.message_id}-{kind}"
        if element not in self._element_ids:
            self._element_ids.add(element)
            html = self._html(kind, message_id=delta.message_id, text="")
            yield put(f"{delta.message_id}-parts", f"{element}-box", html)
        yield add_text(element, delta.text)

    def _message(self, message_id: str) -> Iterator[Operation]:
        """Makes the element of a message that is being written."""
        if message_id not in self._element_ids:
            self._element_ids.add(message_id)
            yield put(self._messages, message_id, self._html("message", message_id=message_id))

    def _call_delta(self, delta: run_event_pb2.ToolCallDelta) -> Iterator[Operation]:
        yield from self._message(delta.message_id)
        call_key = (delta.message_id, delta.index)
        if delta.tool_call_id:
            self._calls[call_key] = delta.tool_call_id
            yield from self._call(delta.message_id, delta.tool_call_id, delta.name, "")
            yield from self._status(f"Calling {delta.name}")
        if delta.arguments and call_key in self._calls:
            yield add_text(f"call-{self._calls[call_key]}-arguments", delta.arguments)

    def _call(
        self, message_id: str, call_id: str, name: str, arguments: str
    ) -> Iterator[Operation]:
        self._element_ids.add(f"call-{call_id}")
        self._transcript.running.add(call_id)
        call = message_pb2.ToolCallPart(tool_call_id=call_id, name=name, arguments=arguments)
        yield put(f"{message_id}-parts", f"call-{call_id}", self._html("call", call=call))

    def _snapshot(self, snapshot: run_event_pb2.TextSnapshot) -> Iterator[Operation]:
        message_id = snapshot.message_id
        self._element_ids.discard(message_id)
        yield from self._message(message_id)
        for kind, text in (("reasoning", snapshot.reasoning), ("text", snapshot.text)):
            self._element_ids.discard(f"{message_id}-{kind}")
            if text:
                self._element_ids.add(f"{message_id}-{kind}")
                html = self._html(kind, message_id=message_id, text=text)
                yield put(f"{message_id}-parts", f"{message_id}-{kind}-box", html)
        for call in snapshot.tool_calls:
            self._calls[message_id, call.index] = call.tool_call_id
            yield from self._call(message_id, call.tool_call_id, call.name, call.arguments)

    def _step_restarted(self, event: run_event_pb2.StepRestarted) -> Iterator[Operation]:
        self._element_ids = {
            name for name in self._element_ids if not name.startswith(event.message_id)
        }
        yield remove(event.message_id)
        reason = event.reason or "The model is asked again."
        if not event.given_up:
            yield from self._status(reason)

    def _tool_started(self, event: run_event_pb2.ToolStarted) -> Iterator[Operation]:
        yield from self._put_call(event.tool_call_id, event.name, event.arguments)
        yield from self._status(f"Running {event.name}")

    def _tool_finished(self, event: run_event_pb2.ToolFinished) -> Iterator[Operation]:
        call_id = event.tool_return.tool_call_id
        self._transcript.finish(event)
        name, arguments = self._known_calls.get(call_id, (event.tool_return.name, ""))
        yield from self._put_call(call_id, name, arguments)
        yield from self._status("Going on")

    def _put_call(self, call_id: str, name: str, arguments: str) -> Iterator[Operation]:
        self._known_calls[call_id] = (name, arguments)
        if call_id not in self._transcript.returns:
            self._transcript.running.add(call_id)
        call = message_pb2.ToolCallPart(tool_call_id=call_id, name=name, arguments=arguments)
        yield put(self._messages, f"call-{call_id}", self._html("call", call=call))

    def _stored(self, message: message_pb2.Message) -> Iterator[Operation]:
        self._transcript.add([message])
        if message.role == message_pb2.ROLE_TOOL:
            return
        for part in message.parts:
            if part.HasField("tool_call"):
                # From now on it is shown as a part of the message.
                yield remove(f"call-{part.tool_call.tool_call_id}")
        yield put(self._messages, message.id, self._html("stored", message=message))

    def _approval_requested(self, event: run_event_pb2.ApprovalRequested) -> Iterator[Operation]:
        approval = event.approval
        self._transcript.open_approvals.add(approval.approval_id)
        html = self._html("approval", approval=approval)
        yield put(self._messages, f"approval-{approval.approval_id}", html)

    def _compacted(self, event: run_event_pb2.WindowCompacted) -> Iterator[Operation]:
        element = f"{self._run}-compacted-{event.summary.id}"
        html = self._html("compacted", compacted=event, element=element)
        yield put(self._messages, element, html)

    def _finished(self, event: run_event_pb2.RunFinished) -> Iterator[Operation]:
        well = ended_well(event)
        notable = not well or event.stop_reason in STOP_SENTENCES
        yield from self._ended(event, ending_sentence(event) if notable else "", well=well)

    def _ended(
        self, event: run_event_pb2.RunFinished, sentence: str, *, well: bool
    ) -> Iterator[Operation]:
        html = self._html(
            "finished", sentence=sentence, well=well, usage=event.usage, taint=event.taint
        )
        yield put(self._run, f"{self._run}-status", html)
        yield {"op": "end", "id": self._run}


async def server_sent_events(
    call: AsyncIterable[pb.StreamRunResponse], live: RunView
) -> AsyncIterator[bytes]:
    """Yields the operations of a run as server-sent events, one for each event of the run.

    Args:
        call: The stream of the run.
        live: Turns its events into operations.
    """
    events = aiter(call)
    waiting: asyncio.Task[pb.StreamRunResponse] | None = None
    try:
        while True:
            waiting = waiting or asyncio.ensure_future(anext(events))
            done, _ = await asyncio.wait((waiting,), timeout=_KEEP_ALIVE_S)
            if not done:
                # Proxies end connections on which nothing is sent.
                yield _KEEP_ALIVE
                continue
            response, waiting = waiting.result(), None
            if operations := live.operations(response.event):
                yield _event(operations)
    except StopAsyncIteration:
        pass
    except StrataError as error:
        yield _event(live.failed(error))
    finally:
        if waiting is not None:
            waiting.cancel()
        # If the browser has left, the call is over.
        cancel = getattr(call, "cancel", None)
        if cancel is not None:
            cancel()


def _event(operations: list[Operation]) -> bytes:
    return b"data: " + json.dumps(operations, ensure_ascii=False).encode() + b"\n\n"

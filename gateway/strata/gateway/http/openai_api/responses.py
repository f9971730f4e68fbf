"""A response of OpenAI's Responses API, written while the reply of an agent arrives."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from strata.api.common.v1 import message_pb2, usage_pb2
from strata.gateway.http.openai_api.errors import ApiError, RunFailedError
from strata.gateway.http.openai_api.replies import ClientCalls, Finished, Ignored, Piece, Text
from strata.shared.ids import is_id

_RUN = "run"
_RESPONSE = "resp_"
# The API has a closed list of codes; the error's type names the reason of Strata.
_CODES = {"model_rate_limited": "rate_limit_exceeded", "model_request_refused": "invalid_prompt"}

Event = dict[str, Any]


def response_id(run_id: str) -> str:
    """Returns the id of the response that a run gives."""
    return run_id.replace(f"{_RUN}-", _RESPONSE, 1)


def run_id_of(response: str) -> str | None:
    """Returns the id of the run that gave a response; None if it is not the id of a response."""
    run_id = f"{_RUN}-{response.removeprefix(_RESPONSE)}"
    return run_id if response.startswith(_RESPONSE) and is_id(run_id, _RUN) else None


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """The fields of a response other than the reply.

    Attributes:
        run_id: The run.
        model: The agent, as the client names it.
        conversation_id: The conversation.
        created_at: When the run began, in seconds.
        previous_response_id: The response that it follows, if the client named it.
        text_format: The required format of the reply, if that is known.
        completed_at: When the run ended, if it has, in seconds.
        ignored: The parts of the request that have no effect, if that is known.
    """

    run_id: str
    model: str
    conversation_id: str
    created_at: int
    previous_response_id: str | None = None
    text_format: dict[str, Any] | None = None
    completed_at: int | None = None
    ignored: Ignored = field(default_factory=Ignored)


class ResponseWriter:
    """Writes a response and the events of its stream.

    Args:
        head: The fields other than the reply.
        status: Its status before it ends.
    """

    def __init__(self, head: ResponseHead, status: str = "in_progress") -> None:
        self._head = head
        self._status = status
        self._sequence_numbers = itertools.count()
        self._output: list[dict[str, Any]] = []
        self._text: str | None = None
        self._error: dict[str, Any] | None = None
        self._incomplete: dict[str, Any] | None = None
        self._usage: usage_pb2.Usage | None = None
        self._completed_at: int | None = None

    def body(self) -> dict[str, Any]:
        """Returns the response so far."""
        head = self._head
        return {
            "id": response_id(head.run_id),
            "object": "response",
            "created_at": head.created_at,
            "status": self._status,
            "background": False,
            "completed_at": self._completed_at,
            "error": self._error,
            "incomplete_details": self._incomplete,
            "instructions": None,
            "max_output_tokens": None,
            "metadata": {},
            "model": head.model,
            "output": list(self._output),
            "parallel_tool_calls": True,
            "previous_response_id": head.previous_response_id,
            "conversation": {"id": head.conversation_id},
            "store": True,
            "temperature": None,
            "text": None if head.text_format is None else {"format": head.text_format},
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "usage": None if self._usage is None else _usage(self._usage),
            **head.ignored.fields(),
        }

    def begin(self) -> Sequence[Event]:
        """Returns the events of a response that begins."""
        return [
            self._event("response.created", response=self.body()),
            self._event("response.in_progress", response=self.body()),
        ]

    def add(self, piece: Piece) -> Sequence[Event]:
        """Adds a piece of the reply and returns its events; the last piece ends the response."""
        return list(self._add(piece))

    def fail(self, error: ApiError) -> Sequence[Event]:
        """Ends a stream without a reply and returns its events.

        Args:
            error: Why. The response has failed if its run has; after another error the run
                continues.
        """
        return list(self._fail(error))

    def _add(self, piece: Piece) -> Iterator[Event]:
        match piece:
            case Text():
                if self._text is None:
                    yield from self._begin_message()
                yield from self._add_text(piece.text)
            case ClientCalls():
                yield from self._end_message("completed")
                for call in piece.calls:
                    yield from self._add_call(call)
            case Finished():
                yield from self._finish(piece)

    def _fail(self, error: ApiError) -> Iterator[Event]:
        if not isinstance(error, RunFailedError):
            yield self._event("error", code=error.code, message=error.message, param=error.param)
            return
        yield from self._end_message("incomplete")
        self._error = {
            "code": _CODES.get(error.code or "", "server_error"),
            "message": error.message,
            "type": error.code,
        }
        self._usage = error.usage
        self._status = "cancelled" if error.cancelled else "failed"
        yield self._event("response.failed", response=self.body())

    def _finish(self, finished: Finished) -> Iterator[Event]:
        self._usage = finished.usage
        if finished.reason == "length":
            yield from self._end_message("incomplete")
            # The API has no reason for the limit of steps.
            self._incomplete = {"reason": "max_output_tokens"}
            self._status = "incomplete"
            yield self._event("response.incomplete", response=self.body())
            return
        yield from self._end_message("completed")
        self._status = "completed"
        self._completed_at = self._head.completed_at or int(time.time())
        yield self._event("response.completed", response=self.body())

    def _begin_message(self) -> Iterator[Event]:
        self._text = ""
        yield self._event(
            "response.output_item.added",
            output_index=len(self._output),
            item=self._message("in_progress"),
        )
        yield self._text_event("response.content_part.added", part=_text_content(""))

    def _add_text(self, text: str) -> Iterator[Event]:
        self._text = (self._text or "") + text
        yield self._text_event("response.output_text.delta", delta=text, logprobs=[])

    def _end_message(self, status: str) -> Iterator[Event]:
        text = self._text
        if text is None:
            return
        message = self._message(status, _text_content(text))
        yield self._text_event("response.output_text.done", text=text, logprobs=[])
        yield self._text_event("response.content_part.done", part=_text_content(text))
        yield self._end_item(message)
        self._text = None

    def _add_call(self, call: message_pb2.ToolCallPart) -> Iterator[Event]:
        item = {
            "id": f"fc_{call.tool_call_id}",
            "type": "function_call",
            "call_id": call.tool_call_id,
            "name": call.name,
        }
        position = {"item_id": item["id"], "output_index": len(self._output)}
        yield self._event(
            "response.output_item.added",
            output_index=len(self._output),
            item={**item, "arguments": "", "status": "in_progress"},
        )
        yield self._event(
            "response.function_call_arguments.delta", **position, delta=call.arguments
        )
        yield self._event(
            "response.function_call_arguments.done",
            **position,
            name=call.name,
            arguments=call.arguments,
        )
        yield self._end_item({**item, "arguments": call.arguments, "status": "completed"})

    def _end_item(self, item: dict[str, Any]) -> Event:
        index = len(self._output)
        self._output.append(item)
        return self._event("response.output_item.done", output_index=index, item=item)

    def _message(self, status: str, *content: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": self._message_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": list(content),
        }

    @property
    def _message_id(self) -> str:
        # All text of a reply is in one message.
        return response_id(self._head.run_id).replace(_RESPONSE, "msg_", 1)

    def _text_event(self, kind: str, **fields: Any) -> Event:
        return self._event(
            kind,
            item_id=self._message_id,
            output_index=len(self._output),
            content_index=0,
            **fields,
        )

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": kind, "sequence_number": next(self._sequence_numbers), **fields}


def _text_content(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: usage_pb2.Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_input_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }

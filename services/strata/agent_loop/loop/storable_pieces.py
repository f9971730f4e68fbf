"""Streamed pieces of a reply in the form in which the reply is stored."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from strata.agent_loop.domain.model.chat import (
    ModelEvent,
    ModelReply,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)
from strata.shared.json_text import encodable_text, storable_text


class StorablePieces:
    """Changes the pieces of one reply as `tidy` changes the whole reply.

    So the streamed text is the stored text, and a streamed call has the id of its return. Some
    servers divide a text within a surrogate pair, and no message of gRPC could contain the halves.

    Args:
        used_ids: Returns the ids of the calls in the window.
    """

    def __init__(self, used_ids: Callable[[], Collection[str]]) -> None:
        self._used_ids = used_ids
        self._ids: CallIds | None = None
        self._id_by_index: dict[int, str] = {}
        self._text = _Text()
        self._reasoning = _Text()
        self._arguments: dict[int, _Text] = {}

    def take(self, event: ModelEvent) -> ModelEvent | None:
        """Returns a piece as it is stored; None if nothing of it can be passed on yet."""
        if isinstance(event, TextDelta):
            text = self._text.feed(event.text)
            return event if text is event.text else TextDelta(text) if text else None
        if isinstance(event, ReasoningDelta):
            text = self._reasoning.feed(event.text)
            return event if text is event.text else ReasoningDelta(text) if text else None
        if isinstance(event, ToolCallDelta):
            return self._call(event)
        return event

    def rest(self) -> Iterator[ModelEvent]:
        """Yields the pieces that were held back until the end of the reply."""
        if text := self._reasoning.close():
            yield ReasoningDelta(text)
        if text := self._text.close():
            yield TextDelta(text)
        for index, arguments in self._arguments.items():
            if text := arguments.close():
                yield ToolCallDelta(index, self._id_by_index[index], "", text)

    def with_ids(self, reply: ModelReply) -> ModelReply:
        """Returns the reply with the ids that its calls have in the pieces."""
        if not self._id_by_index:
            return reply
        calls = [
            replace(call, id=self._id_by_index.get(index, call.id))
            for index, call in enumerate(reply.tool_calls)
        ]
        return replace(reply, tool_calls=tuple(calls))

    def _call(self, event: ToolCallDelta) -> ToolCallDelta:
        call_id = self._id_by_index.get(event.index)
        if call_id is None:
            if self._ids is None:
                self._ids = CallIds(self._used_ids())
            call_id = self._id_by_index[event.index] = self._ids.add(event.id)
            self._arguments[event.index] = _Text()
        arguments = self._arguments[event.index].feed(event.arguments)
        return ToolCallDelta(event.index, call_id, storable_text(event.name), arguments)


class CallIds:
    """Makes the ids of calls storable and unique in a window.

    Some servers number the calls of each reply from the start, and returns are matched to calls by
    id.

    Args:
        used: Ids of the calls in the window.
    """

    def __init__(self, used: Collection[str]) -> None:
        self._used = set(used)

    def add(self, call_id: str) -> str:
        """Returns the id for another call."""
        wanted = storable_text(call_id) or "call"
        unique, number = wanted, 1
        while unique in self._used:
            number += 1
            unique = f"{wanted}_{number}"
        self._used.add(unique)
        return unique


class _Text:
    """One text in pieces; see `storable_text`."""

    def __init__(self) -> None:
        # The first half of a surrogate pair, whose other half may be in the next piece.
        self._half = ""

    def feed(self, piece: str) -> str:
        if piece.isascii() and not self._half and "\0" not in piece:
            return piece
        text = (self._half + piece).replace("\0", "")
        self._half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
        return encodable_text(text[: len(text) - len(self._half)])

    def close(self) -> str:
        half, self._half = self._half, ""
        return encodable_text(half)

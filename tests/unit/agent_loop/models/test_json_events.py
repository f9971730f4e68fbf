"""Events of streamed replies, divided as the SDK divides them."""

from __future__ import annotations

import json
import random

import httpx2
import pytest
from openai import APIConnectionError, APIError
from openai._streaming import SSEDecoder

from strata.agent_loop.models.openai_api.json_events import JsonEvents, ServerSentData

REQUEST = httpx2.Request("POST", "http://model.example/v1/chat/completions")
LINES = (
    "data: {}", "data:{}", "data", "data: two\u00e9", "data:  spaced ", ": comment", "event: chunk",
    "retry: 3", "", "", "unknown: x", "data: \U0001f600",
)  # fmt: skip
ENDS = ("\n", "\r\n", "\r")


class Body(httpx2.AsyncByteStream):
    """A body in the given pieces; an error after them if it breaks."""

    def __init__(self, *pieces: bytes, breaks: bool = False) -> None:
        self._pieces = pieces
        self._breaks = breaks
        self.closed = False

    async def __aiter__(self):  # type: ignore[no-untyped-def]
        for piece in self._pieces:
            yield piece
        if self._breaks:
            raise httpx2.ReadError("reset by the server")

    async def aclose(self) -> None:
        self.closed = True


def events_of(body: Body) -> JsonEvents:
    return JsonEvents(response=httpx2.Response(200, request=REQUEST, stream=body))


def pieces_of(text: bytes, random_source: random.Random) -> list[bytes]:
    pieces = []
    while text:
        size = random_source.choice((1, 2, 3, 7, 20))
        pieces.append(text[:size])
        text = text[size:]
    return pieces


@pytest.mark.parametrize("seed", range(60))
def test_events_are_divided_as_by_the_sdk(seed: int) -> None:
    source = random.Random(seed)
    ends = source.choice((("\n",), ("\r\n",), ("\r",), ENDS))
    text = "".join(source.choice(LINES) + source.choice(ends) for _ in range(40)).encode()
    pieces = pieces_of(text, source)
    if seed % 2:
        # As they usually come: a piece is an event.
        pieces = [b"data: %d\n\n" % number for number in range(3)] + pieces
        pieces += [b"\n\n", b"data: x\n\n", b"data: y\n\ndata: z\n\n", b"data: \n\n"]
    # The SDK reports events without data as well.
    expected = [event.data for event in SSEDecoder().iter_bytes(iter(pieces)) if event.data]

    divided = ServerSentData()

    texts = [data.decode() for piece in pieces for data in divided.feed(piece)]
    assert [data for data in texts if data] == expected


async def test_all_events_of_a_piece_are_ready_at_once_and_the_last_one_ends_the_stream() -> None:
    body = Body(b'data: {"a": 1}\n\ndata: {"a": 2}\n\ndata: [DO', b"NE]\n\ndata: 3\n\n", b"rest")
    events = events_of(body)
    assert not events.ready
    await events.read()
    assert (events.pop(), events.ready, events.pop()) == ({"a": 1}, True, {"a": 2})
    assert not events.ready
    await events.read()
    with pytest.raises(StopAsyncIteration):
        events.pop()
    await events.close()
    assert body.closed
    assert events.ready
    with pytest.raises(StopAsyncIteration):
        events.pop()


async def test_a_stream_without_a_last_event_ends_with_its_body() -> None:
    events = events_of(Body(b"data: null\n\n", b"data: 2\n"))
    assert [event async for event in events] == [None]
    await events.close()


async def test_broken_streams_wrong_json_and_errors_are_raised_after_earlier_events() -> None:
    events = events_of(Body(b"data: 1\n\ndata: {\n\n", breaks=True))
    assert await anext(events) == 1
    with pytest.raises(json.JSONDecodeError):
        await anext(events)
    with pytest.raises(APIConnectionError) as broken:
        await anext(events)
    assert isinstance(broken.value.__cause__, httpx2.ReadError)

    events = events_of(Body(b'data: 1\n\ndata: {"error": {"message": "full", "code": "x"}}\n\n'))
    assert await anext(events) == 1
    with pytest.raises(APIError, match="full") as reported:
        await anext(events)
    assert reported.value.code == "x"

    events = events_of(Body(b'data: {"error": "full"}\n\n'))
    with pytest.raises(APIError, match="during streaming"):
        await anext(events)

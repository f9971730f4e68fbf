"""The text of a reply in the streams of OpenAI's API, whose model was asked again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from reply_events import delta, restarted, step, stored
from strata.api.common.v1 import run_event_pb2 as pb
from strata.gateway.http.openai_api.errors import ApiError
from strata.gateway.http.openai_api.replies import Finished, Piece, Text, pieces_of

END = pb.RunEvent(run_finished=pb.RunFinished(stop_reason=pb.STOP_REASON_END_TURN))
FIRST = [step("a"), delta("a", "One."), stored("a", "One."), step("b")]


async def of(events: Sequence[pb.RunEvent]) -> AsyncIterator[pb.RunEvent]:
    for event in events:
        yield event


async def read(events: Sequence[pb.RunEvent]) -> list[Piece]:
    return [piece async for piece in pieces_of(of([*events, END]))]


@pytest.mark.parametrize(
    "again",
    [
        # The reply has the same id if a fallback model is asked, and another one after a new
        # dispatch.
        [restarted("b"), delta("b", "Two."), stored("b", "Two.")],
        [restarted("b"), step("c"), delta("c", "Two."), stored("c", "Two.")],
        [restarted("b"), step("c"), stored("c", "Two.")],
        [delta("b", "Tw"), restarted("b"), delta("b", "Two."), stored("b", "Two.")],
        [delta("b", "Tw"), restarted("b"), step("c"), delta("c", "Two."), stored("c", "Two.")],
    ],
)
async def test_an_earlier_reply_is_not_taken_for_the_one_that_is_repeated(
    again: list[pb.RunEvent],
) -> None:
    *pieces, end = await read([*FIRST, *again])
    texts = [piece.text for piece in pieces if isinstance(piece, Text)]
    assert isinstance(end, Finished)
    assert "".join(texts) == "One.\n\nTwo."


@pytest.mark.parametrize("text", ["", "A", "Another one."])
async def test_a_stream_whose_text_is_not_stored_ends_with_an_error(text: str) -> None:
    repeated = [delta("b", "Two"), restarted("b"), step("c"), stored("c", text)]
    with pytest.raises(ApiError, match="gave another reply"):
        await read([*FIRST, *repeated])

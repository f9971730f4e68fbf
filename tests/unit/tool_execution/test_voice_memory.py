"""``store_memories``: indices, texts of passages, and a range that is stored already."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from strata.api.archival.v1 import passage_service_pb2 as pb
from strata.protocol.errors import AlreadyExistsError, Reason, UnavailableError
from strata.shared.ids import new_id
from strata.shared.tool_catalogue import MEMORIES_STORED
from strata.tool_execution.builtin.voice_memory import StoreMemories, passages_of
from strata.tool_execution.domain.tools import CallingAgent, OlderLines, ToolCall, ToolError

AGENT = new_id("agent")
LINES = ("user: a", "assistant: b", "user: c\n  d")
CALL = ToolCall("call-1", "store_memories", "{}", "run/1/1")


def caller(lines: tuple[str, ...] | None = LINES) -> CallingAgent:
    older = None if lines is None else OlderLines(AGENT, "memories-of/c/1/9", lines)
    return CallingAgent(
        new_id("agent"),
        new_id("conversation"),
        new_id("run"),
        "step-1",
        "openai/x",
        "UTC",
        taint=("web",),
        older_lines=older,
    )


def memory(start: int, end: int, context: str = "Why.") -> dict[str, Any]:
    return {"start_index": start, "end_index": end, "context": context}


class Passages:
    """Records requests; fails with the given errors first."""

    def __init__(self, *errors: Exception) -> None:
        self.requests: list[pb.UploadPassagesRequest] = []
        self._errors = list(errors)

    async def UploadPassages(self, requests: Any) -> AsyncIterator[pb.UploadPassagesResponse]:
        self.requests += [request async for request in requests]
        if self._errors:
            raise self._errors.pop(0)
        count = len(self.requests[-1].passages)
        for complete in (False, True):
            yield pb.UploadPassagesResponse(
                received_count=count, inserted_count=count, complete=complete
            )


async def store(passages: Any, *memories: dict[str, Any], who: CallingAgent | None = None) -> Any:
    tool = StoreMemories(passages)
    return (await tool.run(CALL, {"memories": list(memories)}, who or caller())).value


async def test_memories_are_stored_in_one_request_with_the_key_of_the_range() -> None:
    passages = Passages()
    assert await store(passages, memory(0, 1), memory(2, 2, " ")) == MEMORIES_STORED
    [request] = passages.requests
    assert (request.request_id, request.agent_id) == ("memories-of/c/1/9", AGENT)
    texts = [passage.text for passage in request.passages]
    assert texts == ["Why.\n\nuser: a\nassistant: b", "user: c\n  d"]
    assert all(len(passage.origin.taint) == 1 for passage in request.passages)


async def test_a_range_stored_already_is_a_success_and_a_lost_answer_is_retried() -> None:
    reused = AlreadyExistsError("known", reason=Reason.REQUEST_ID_REUSED)
    passages = Passages(UnavailableError("away", retry_after=0.0), reused)
    assert await store(passages, memory(0, 0)) == MEMORIES_STORED
    assert len(passages.requests) == 2


@pytest.mark.parametrize("wrong", [(memory(0, 0), memory(2, 1)), (memory(3, 3),), (memory(9, 0),)])
async def test_wrong_indices_are_refused_and_nothing_is_stored(
    wrong: tuple[dict[str, Any], ...],
) -> None:
    passages = Passages()
    with pytest.raises(ToolError, match="are 0 to 2"):
        await store(passages, *wrong)
    assert not passages.requests


async def test_lines_of_the_newer_part_are_left_to_a_later_run() -> None:
    passages = Passages()
    assert await store(passages, memory(1, 7), memory(5, 6)) == MEMORIES_STORED
    [passage] = passages.requests[0].passages
    assert passage.text == "Why.\n\nassistant: b\nuser: c\n  d"


@pytest.mark.parametrize("lines", [None, ()])
async def test_without_older_lines_only_an_empty_list_is_accepted(lines: Any) -> None:
    passages = Passages()
    with pytest.raises(ToolError, match="empty list"):
        await store(passages, memory(0, 0), who=caller(lines))
    assert await store(passages, who=caller(lines)) == MEMORIES_STORED
    assert not passages.requests


def test_a_long_memory_is_several_passages_that_hold_it_whole() -> None:
    lines = ("user: " + "x" * 20_000, "assistant: " + "y" * 3_000, "user: z")
    texts = list(passages_of(memory(0, 2), lines))
    assert all(len(text) <= 6_000 + len("Why.\n\n") for text in texts)
    bodies = [text.removeprefix("Why.\n\n") for text in texts]
    assert "".join(bodies).replace("\n", "") == "".join(lines)


async def test_repeating_the_same_lines_too_often_is_refused() -> None:
    passages = Passages()
    long = caller(("user: " + "x" * 50_000, "assistant: " + "y" * 50_000))
    with pytest.raises(ToolError, match="repeat the same lines"):
        await store(passages, *[memory(0, 1)] * 3, who=long)
    assert not passages.requests
    assert await store(passages, memory(0, 1), memory(1, 1), who=long) == MEMORIES_STORED
    assert await store(passages, *[memory(0, 2)] * 100) == MEMORIES_STORED

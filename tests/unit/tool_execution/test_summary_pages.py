"""Pages of ``expand_summary``: whole JSON that fits the smallest limit of a return."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from strata.agent_loop.context.packaging import MIN_RETURN_CHARS, cut_return
from strata.api.common.v1 import message_pb2 as common
from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.shared.tool_returns import FUNCTION_RETURN_CHAR_LIMIT, pack
from strata.tool_execution.builtin.summaries import ExpandSummary
from strata.tool_execution.domain.tools import CallingAgent, ToolCall

NOW = datetime(2026, 11, 22, tzinfo=UTC)
CALLER = CallingAgent("agent-1", "conversation-1", "run-1", "step-1", "m", "Europe/Lisbon")


class Stub:
    """Answers as recall does, from a list of texts."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts
        self.asked: list[message_pb.ExpandSummaryRequest] = []

    async def ExpandSummary(self, request: Any) -> message_pb.ExpandSummaryResponse:
        self.asked.append(request)
        first, last = request.from_sequence, len(self._texts)
        chosen = list(enumerate(self._texts))[first : first + request.page_size]
        messages = []
        for number, text in chosen:
            part = common.Part(text=common.TextPart(text=text))
            message = common.Message(sequence=number, role=common.ROLE_USER, parts=[part])
            message.create_time.FromDatetime(NOW)
            messages.append(message)
        after = first + len(chosen)
        response = message_pb.ExpandSummaryResponse(
            messages=messages, next_sequence=after if after < last else 0
        )
        summary = common.SummaryPart(text="s", first_sequence=0, last_sequence=last - 1)
        response.summary.parts.append(common.Part(summary=summary))
        return response


async def page(stub: Stub, **arguments: Any) -> dict[str, Any]:
    call = ToolCall("call-1", "expand_summary", json.dumps(arguments), "key")
    output = await ExpandSummary(stub).run(call, arguments, CALLER)  # type: ignore[arg-type]
    packed, cut = pack("OK", output.value, NOW, FUNCTION_RETURN_CHAR_LIMIT)
    assert not cut
    assert cut_return(packed, MIN_RETURN_CHARS) == packed, "the model gets the whole text"
    content: dict[str, Any] = json.loads(packed)["message"]
    return content


@given(
    st.lists(st.text(st.characters(codec="utf-8"), max_size=40).map(lambda t: t * 60), max_size=30)
)
async def test_pages_contain_every_message_once_and_are_never_truncated_as_text(
    texts: list[str],
) -> None:
    stub = Stub(texts)
    numbers: list[int] = []
    following: int | None = 0
    while following is not None:
        got = await page(stub, first_number=following)
        numbers += [message["number"] for message in got["messages"]]
        assert got["next_number"] is None or got["next_number"] > following
        following = got["next_number"]
    assert numbers == list(range(len(texts)))


async def test_a_single_message_may_fill_the_page() -> None:
    stub = Stub(["x" * 9_000, "y" * 9_000])
    [alone] = (await page(stub, limit=1))["messages"]
    assert alone["content"].startswith("x" * 3_000)
    assert alone["content"].endswith(" chars]")
    both = (await page(stub))["messages"]
    assert len(both[0]["content"]) < 1_100


async def test_times_are_the_agents() -> None:
    [one] = (await page(Stub(["a"]), limit=1))["messages"]
    assert one["timestamp"] == "2026-11-22T00:00:00+00:00"
    assert one["role"] == "user"

"""Previews of compactions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

from strata.agent_loop.agents.next_requests import NextRequests
from strata.agent_loop.compaction.manual_compaction import plan_on_request
from strata.agent_loop.compaction.plan import Obstacle, Plan
from strata.agent_loop.compaction.preview import MAX_MESSAGES, PreviewOutcome, preview_of
from strata.agent_loop.context.inspection import NextRequest
from strata.agent_loop.domain.agent.agents import Agent, CompactionSettings
from strata.agent_loop.domain.conversation.approvals import ApprovalRequest
from strata.agent_loop.domain.conversation.messages import (
    Message,
    SummaryPart,
    ToolReturn,
    Window,
)
from strata.agent_loop.domain.model.chat import TextPart, ToolCall
from strata.agent_loop.domain.ports import BoundModel, MemorySection
from strata.agent_loop.domain.tools import ToolSet
from strata.agent_loop.models.tokens import TokenEstimator
from strata.shared.agent_types import AgentType
from strata.shared.ids import new_id
from strata.shared.messages import MessageRole, ToolStatus
from strata.shared.provenance import Provenance
from strata.shared.tool_returns import packed
from unit.agent_loop.loop.loop_harness import LoopHarness


def message(role: MessageRole, text: str, **fields: object) -> Message:
    part = SummaryPart(text, 1, 1, 1) if role is MessageRole.SUMMARY else TextPart(text)
    return Message(new_id("message"), role, (part,), **fields)  # type: ignore[arg-type]


def exchange(text: str) -> list[Message]:
    return [message(MessageRole.USER, text), message(MessageRole.ASSISTANT, text)]


def next_request(*body: Message, bound: bool = True, window_tokens: int = 32_000) -> NextRequest:
    harness = LoopHarness(window_tokens=window_tokens)
    agent = Agent(
        new_id("agent"),
        "Ann",
        AgentType.LETTA_V1,
        "Base.",
        compaction=CompactionSettings(mode="all"),
    )
    messages = (message(MessageRole.SYSTEM, "system"), *body)
    model = BoundModel(harness.model, harness.models.settings) if bound else None
    section = MemorySection("", None)
    return NextRequest(
        agent, Window("", agent.id, 1, messages, 9), messages, ToolSet(()), model, section
    )


def test_every_message_has_an_outcome_and_tokens() -> None:
    body = [
        message(MessageRole.SUMMARY, "before"),
        *exchange("one"),
        replace(message(MessageRole.USER, "kept"), pinned=True),
        message(MessageRole.ASSISTANT, "gone"),
        *exchange("now"),
    ]
    request = next_request(*body)
    token_budget = request.token_budget(TokenEstimator())
    planned = plan_on_request(request, token_budget)
    assert isinstance(planned, Plan)
    preview = preview_of(request, token_budget, planned)
    assert [previewed.message for previewed in preview.messages] == body
    assert [previewed.outcome for previewed in preview.messages] == [
        PreviewOutcome.REPLACED,
        PreviewOutcome.SUMMARIZED,
        PreviewOutcome.SUMMARIZED,
        PreviewOutcome.KEPT,
        PreviewOutcome.SUMMARIZED,
        PreviewOutcome.KEPT,
        PreviewOutcome.KEPT,
    ]
    assert {outcome: total.message_count for outcome, total in preview.sums.items()} == {
        PreviewOutcome.KEPT: 3,
        PreviewOutcome.SUMMARIZED: 3,
        PreviewOutcome.REPLACED: 1,
    }
    assert all(previewed.tokens > 0 for previewed in preview.messages)
    assert preview.obstacle is None
    freed = (
        preview.sums[PreviewOutcome.SUMMARIZED].tokens
        + preview.sums[PreviewOutcome.REPLACED].tokens
    )
    # Each sum is rounded up.
    assert 0 <= preview.tokens_kept + freed - preview.tokens_before <= 2


def test_without_a_model_every_message_is_kept() -> None:
    request = next_request(message(MessageRole.SUMMARY, "before"), *exchange("now"), bound=False)
    token_budget = request.token_budget(TokenEstimator())
    preview = preview_of(request, token_budget, plan_on_request(request, token_budget))
    assert preview.obstacle is Obstacle.NO_MODEL
    assert {previewed.outcome for previewed in preview.messages} == {PreviewOutcome.KEPT}
    assert preview.tokens_before == preview.tokens_kept


def test_of_a_long_window_the_messages_around_the_cut_are_listed() -> None:
    body = [one for number in range(1_200) for one in exchange(str(number))]
    request = next_request(*body)
    token_budget = request.token_budget(TokenEstimator())
    shortened = replace(
        request, agent=replace(request.agent, compaction=CompactionSettings(clip_chars=200))
    )
    for wanted in (request, shortened):
        planned = plan_on_request(wanted, token_budget)
        assert isinstance(planned, Plan)
        preview = preview_of(wanted, token_budget, planned)
        last = body.index(planned.evicted[-1])
        place = preview.first_position
        assert len(preview.messages) == MAX_MESSAGES
        assert [previewed.message for previewed in preview.messages] == body[place:][:MAX_MESSAGES]
        assert place <= last < place + MAX_MESSAGES
        assert preview.sums[PreviewOutcome.SUMMARIZED].message_count == len(planned.evicted)
        assert sum(total.message_count for total in preview.sums.values()) == len(body)
    nothing = preview_of(request, token_budget, Obstacle.NO_MODEL)
    assert (nothing.first_position, len(nothing.messages)) == (0, MAX_MESSAGES)


def test_excerpt_is_short_and_shows_nothing_that_is_hidden() -> None:
    call = ToolCall("call-1", "look_up", '{"query": "x"}')
    content = packed("OK", "Riga\nis there", datetime.now(UTC))
    returned = ToolReturn("call-1", "look_up", ToolStatus.OK, content)
    body = [
        message(MessageRole.USER, "long " * 100),
        Message(new_id("message"), MessageRole.ASSISTANT, (call,)),
        Message(new_id("message"), MessageRole.TOOL, (returned,)),
        message(MessageRole.USER, "heartbeat", provenance=(Provenance.SYSTEM,)),
    ]
    request = next_request(*body)
    preview = preview_of(request, request.token_budget(TokenEstimator()), Obstacle.NO_MODEL)
    excerpts = [previewed.excerpt for previewed in preview.messages]
    assert excerpts[0] == ("long " * 24)[:119] + "…"
    assert excerpts[1:] == ["called look_up", "look_up: OK: Riga is there", ""]


async def test_next_turn_compacts_only_a_full_window_in_which_messages_have_space() -> None:
    requests = NextRequests(*[cast("Any", None)] * 7)
    long = [one for _ in range(20) for one in exchange("word " * 150)]
    full = next_request(*long, window_tokens=4096)
    asking = Message(new_id("message"), MessageRole.APPROVAL, (ApprovalRequest("approval-1", ()),))

    async def planned(request: NextRequest) -> Plan | Obstacle:
        steps = await requests.next_steps(request, request.token_budget(TokenEstimator()))
        return steps.compaction

    def with_window(request: NextRequest, messages: Sequence[Message]) -> NextRequest:
        return replace(request, window=replace(request.window, messages=tuple(messages)))

    taken = await planned(full)
    assert isinstance(taken, Plan)
    assert (len(taken.evicted), taken.kept) == (40, ())
    assert await planned(next_request(*long)) is Obstacle.WINDOW_NOT_FULL
    assert await planned(next_request(*long, bound=False)) is Obstacle.NO_MODEL
    pinned = [replace(message, pinned=True) for message in full.window.messages]
    assert await planned(with_window(full, pinned)) is Obstacle.PINNED_MESSAGES_FILL_SPACE
    crowded = [message(MessageRole.SYSTEM, "memory " * 2_000), *long]
    assert await planned(with_window(full, crowded)) is Obstacle.PROMPT_FILLS_WINDOW
    clearing = replace(full, agent=replace(full.agent, message_buffer_autoclear=True))
    assert await planned(clearing) is Obstacle.WINDOW_IS_CLEARED
    waiting = with_window(clearing, [*full.window.messages, asking])
    assert isinstance(await planned(waiting), Plan)

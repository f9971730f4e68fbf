"""Random responses, deadlines and crashes: calls run at most once and only if approved."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from security_examples import security_examples
from strata.agent_loop.domain.conversation.approvals import ApprovalRequest, Decision
from strata.agent_loop.domain.run.runs import RunRequest
from strata.agent_loop.loop.approvals import open_requests
from strata.shared.messages import ToolStatus
from strata.shared.stop_reasons import StopReason
from unit.agent_loop.loop.gated import (
    acts,
    answer,
    assert_a_provider_takes_it,
    change_tools,
    gated_harness,
    returns,
    with_answer,
)
from unit.agent_loop.loop.journals import Died
from unit.agent_loop.loop.loop_harness import LoopHarness, assert_pairs_are_whole
from unit.agent_loop.loop.model_replies import reply

VERDICTS = ("approve", "deny", "client", "forget")
# The process dies at this external call; the run is dispatched again, or abandoned.
deaths = st.none() | st.tuples(st.integers(0, 25), st.booleans())
operations = st.lists(
    st.one_of(
        st.tuples(
            st.just("say"),
            st.lists(st.sampled_from(["acts", "reads", "edits"]), max_size=3),
            deaths,
        ),
        st.tuples(st.just("answer"), st.lists(st.sampled_from(VERDICTS), max_size=3), deaths),
        st.tuples(st.just("again"), st.just([]), st.none()),
        st.tuples(st.just("change"), st.just([]), st.none()),
        st.tuples(st.just("wait"), st.just([]), st.none()),
    ),
    max_size=9,
)


class Story:
    """A conversation with random approvals, and a record of them."""

    def __init__(self) -> None:
        self.harness: LoopHarness = gated_harness("acts")
        self.approved: set[str] = set()
        self.answered: list[tuple[ApprovalRequest, str]] = []
        self.version = 1

    async def tell(self, kind: str, words: list[str], death: tuple[int, bool] | None) -> None:
        harness = self.harness
        open_now = [
            request for request in open_requests(harness.recall.messages) if request.answer is None
        ]
        if kind == "change":
            self.version += 1
            change_tools(harness, "acts", version=str(self.version))
        elif kind == "wait":
            harness.clock.advance(harness.ports.approval_s)
        elif kind == "say":
            await self._run(harness.request("Hi."), words, death)
        elif kind == "answer" and open_now:
            await self._answer(open_now[0].request, words, death)
        elif kind == "again" and self.answered:
            request, _ = self.answered[-1]
            # If the first answer was lost before its calls, this one applies.
            self.approved |= {call.id for call in request.tool_calls}
            everything = [Decision(call.id, approve=True) for call in request.tool_calls]
            await self._run(with_answer(harness, answer(request, *everything)), [], None)

    async def _answer(
        self, request: ApprovalRequest, words: list[str], death: tuple[int, bool] | None
    ) -> None:
        decisions = []
        for index, call in enumerate(request.tool_calls):
            verdict = words[index] if index < len(words) else "approve"
            if verdict == "approve":
                self.approved.add(call.id)
                decisions.append(Decision(call.id, approve=True))
            elif verdict == "deny":
                decisions.append(Decision(call.id, reason="no"))
            elif verdict == "client":
                decisions.append(Decision(call.id, client_return="mine"))
        run = with_answer(self.harness, answer(request, *decisions))
        self.answered.append((request, run.run_id))
        await self._run(run, [], death)

    async def _run(
        self, request: RunRequest, names: list[str], death: tuple[int, bool] | None
    ) -> None:
        harness = self.harness
        harness.model.replies = [harness.calls(*names)] if names else []
        harness.model.replies += [reply("x") for _ in range(4)]
        harness.fate.calls, harness.fate.last = 0, death[0] if death else None
        attempt = 1
        while True:
            try:
                await harness.run(replace(request, attempt=attempt))
            except Died:
                harness.fate.last = None
                if death is not None and death[1]:
                    return
                attempt += 1
            else:
                harness.fate.last = None
                return

    def check(self) -> None:
        harness = self.harness
        assert_pairs_are_whole(harness.recall.messages)
        assert_a_provider_takes_it(harness)
        ran = acts(harness)
        assert max(ran.values(), default=0) <= 1
        assert set(ran) <= self.approved
        answered_ids = [tool_return.tool_call_id for tool_return in returns(harness)]
        assert len(answered_ids) == len(set(answered_ids))
        for tool_return in returns(harness):
            if tool_return.name == "acts" and tool_return.tool_call_id in ran:
                assert tool_return.status is not ToolStatus.FAILED


@security_examples
@given(operations)
def test_calls_run_at_most_once_and_only_if_approved(
    story: list[tuple[str, list[str], tuple[int, bool] | None]],
) -> None:
    async def play() -> None:
        played = Story()
        for kind, words, death in story:
            await played.tell(kind, words, death)
            played.check()
        harness = played.harness
        harness.model.replies = [reply("Still here.")]
        sink = await harness.run(harness.request("Are you there?"))
        assert sink.outcome.stop_reason is StopReason.END_TURN
        assert open_requests(harness.recall.messages) == []
        played.check()

    asyncio.run(play())

"""A long session: up to 2,000 turns in a small window, none of which may fail."""

from __future__ import annotations

import itertools
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from chat_messages import roles, text_of
from doubles.script import Call, Fault, ModelCall, Reply, Step, overflow, say
from metering import Cost, store_events_at_the_end
from run_events import RunEvents
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.common.v1 import message_pb2
from strata.api.common.v1 import run_event_pb2 as event_pb
from strata.api.recall.v1 import message_service_pb2 as message_pb
from whole_system import Shape, System, open_system

pytestmark = pytest.mark.asyncio(loop_scope="session")

FACT = "My grandmother's parrot is called Kasimir-Quetzal."
TOLD_IN = 3
_WHOLE = 100_000


@dataclass(frozen=True)
class Plan:
    """The parameters of a session.

    Attributes:
        window: Size of the window in tokens, as the model server counts them.
        turns: Number of turns; the last but one asks for the fact.
        words: Maximum number of words in a message or an answer.
        measured: The two turns whose costs are compared.
    """

    window: int
    turns: int
    words: int
    measured: tuple[int, int]


@dataclass
class Persona:
    """A model with long answers, calls of tools with huge returns, and some failed summaries.

    Sometimes it refuses a prompt that fits as too long, like a model whose window is smaller than
    its documentation states.

    Attributes:
        plan: The parameters of the session.
        most: Tokens of the longest prompt received.
        refused: Number of prompts that were longer than the window.
        fussy: Number of prompts that it refused although they fit.
        summaries: Number of requests for a summary.
    """

    plan: Plan
    most: int = 0
    refused: int = 0
    fussy: int = 0
    summaries: int = 0

    def __call__(self, call: ModelCall) -> Step:
        tokens = tokens_of(call)
        self.most = max(self.most, tokens)
        if tokens > self.plan.window:
            self.refused += 1
            return overflow(call.dialect)
        step = self._step(call)
        return replace(step, usage=(tokens, 50)) if isinstance(step, Reply) else step

    def _step(self, call: ModelCall) -> Step:
        if "tools" not in call.body:
            return self._summary()
        if call.answered:
            return _say("Looked it up. " + "b" * 300)
        text = str(call.last_text)
        if text.startswith(f"Turn {70 * (self.fussy + 1)}."):
            self.fussy += 1
            return overflow(call.dialect)
        return self._turn(text)

    def _turn(self, text: str) -> Step:
        match = re.match(r"Turn (\d+)", text)
        number = int(match.group(1)) if match else 0
        if "called again" in text:
            query = {"query": "What is my grandmother's parrot called?"}
            first = {"first_number": 1, "limit": 20}
            return Reply(calls=(Call("conversation_search", query), Call("expand_summary", first)))
        if number in range_of_measure(self.plan):
            return _say("Yes.")
        if number % 9 == 4:
            many = Call("conversation_search", {"query": "lorem", "limit": 20})
            return Reply(calls=(many, many))
        if number % 25 == 7:
            edit = {"label": "human", "new_str": f"Had turn {number}."}
            return Reply(calls=(Call("memory_insert", edit),))
        return _say(f"Reply {number}. " + "dolor " * (number * 37 % self.plan.words))

    def _summary(self) -> Step:
        self.summaries += 1
        if self.summaries % 4 == 1:
            return Fault(400, "Not today.", "invalid_request_error")
        if self.summaries % 4 == 2:
            return say("")
        return _say(f"- Summary {self.summaries}: " + "s" * (self.summaries * 331 % 2600))


def tokens_of(call: ModelCall) -> int:
    """Returns the number of tokens of a prompt, at four bytes per token.

    The syntax of JSON is not counted, because a tokenizer gets the texts without it.
    """
    size = 0
    for message in call.body["messages"]:
        calls = message.get("tool_calls") or ()
        texts_of_message = [
            message.get("content") or "",
            *(call["function"]["arguments"] for call in calls),
        ]
        size += sum(len(part.encode()) for part in texts_of_message) + 16
    return size // 4 + len(json.dumps(call.body.get("tools", []))) // 4


def _say(text: str) -> Reply:
    # One delta for the whole text: many small deltas are tested elsewhere, and take longer.
    return Reply(text=text, piece=_WHOLE)


def range_of_measure(plan: Plan) -> set[int]:
    """Returns the numbers of the turns with short messages, one of which is measured.

    There are several for each measurement, because a turn that compacts cannot be measured.
    """
    return {number for at in plan.measured for number in range(at - 3, at + 6)}


@dataclass
class Session:
    """A running session, with its compactions and measured costs."""

    system: System
    plan: Plan
    persona: Persona
    agent: agent_pb.Agent
    compactions: int = 0
    costs: list[Cost] = field(default_factory=list)

    async def turn(self, number: int, text: str) -> RunEvents:
        """Runs one turn, which must succeed."""
        ran = await self.system.send(self.agent, f"Turn {number}. {text}")
        stop = ran.finished.stop_reason
        assert stop == event_pb.STOP_REASON_END_TURN, (number, ran.finished)
        self.compactions += ran.kinds.count("window_compacted")
        self.system.model.requests.clear()
        return ran

    async def run(self) -> RunEvents:
        """Runs all turns; returns the one that asks for the fact."""
        asking = self.plan.turns - 1
        asked: RunEvents | None = None
        for number in range(1, self.plan.turns + 1):
            if number == asking:
                asked = await self.turn(number, "What is my grandmother's parrot called again?")
            elif number in range_of_measure(self.plan):
                await self._measured(number)
            elif number == TOLD_IN:
                await self.turn(number, FACT)
            else:
                await self.turn(number, "lorem ipsum " * (number * 13 % (self.plan.words // 2)))
        assert asked is not None
        return asked

    async def _measured(self, number: int) -> None:
        """Measures a turn; keeps the cost of the first turn without compaction at each place."""
        place = next(i for i, at in enumerate(self.plan.measured) if number < at + 6)
        before = self.compactions
        with pytest.MonkeyPatch.context() as patch:
            store_events_at_the_end(patch)
            async with self.system.measure() as cost:
                await self.turn(number, "Is it so?")
        ready = number >= self.plan.measured[place] and self.compactions == before
        if ready and len(self.costs) == place:
            self.costs.append(cost)

    async def log(self) -> list[message_pb2.Message]:
        """The whole log, oldest first."""
        messages: list[message_pb2.Message] = []
        token = ""
        while True:
            request = message_pb.ListMessagesRequest(
                conversation_id=self.agent.default_conversation_id,
                page_size=500,
                page_token=token,
            )
            page = await self.system.messages.ListMessages(request)
            messages.extend(page.messages)
            token = page.next_page_token
            if not token:
                return messages


def returns_of(ran: RunEvents) -> list[Any]:
    """Returns the tool returns of a turn."""
    (tool_message,) = [message for message in ran.messages if message.role == message_pb2.ROLE_TOOL]
    returns = [json.loads(part.tool_return.content) for part in tool_message.parts]
    assert [tool_return["status"] for tool_return in returns] == ["OK"] * len(returns), returns
    return [tool_return["message"] for tool_return in returns]


def assert_alternates(log: Sequence[message_pb2.Message], turns: int) -> None:
    """Asserts the order of messages: the system message, then the messages of each turn.

    A turn has the user's message, possibly calls with their returns, and a reply. A summary
    precedes the reply for which it made space.
    """
    assert [message.sequence for message in log] == list(range(len(log)))
    names = [name for name in roles(log) if name != "summary"]
    letters = "".join(name[0] for name in names)
    assert re.fullmatch(rf"s(u(at)*a){{{turns}}}", letters), letters[:400]
    texts = [text_of(message) for message in log if message.role == message_pb2.ROLE_USER]
    assert [text.partition(".")[0] for text in texts] == [f"Turn {n}" for n in range(1, turns + 1)]
    for message, following in itertools.pairwise(log):
        calls = [p.tool_call.tool_call_id for p in message.parts if p.HasField("tool_call")]
        if calls:
            returned_ids = [part.tool_return.tool_call_id for part in following.parts]
            assert returned_ids == calls, "each call is followed by its return"


async def session(databases: Any, vectors: Any, plan: Plan, compactions: int) -> None:
    """Runs a session and checks its messages, searches, window sizes and costs.

    Args:
        databases: Creates its databases.
        vectors: The vector engine.
        plan: The parameters of the session.
        compactions: The minimum number of compactions.
    """
    async with open_system(databases, vectors, Shape.IN_PROCESS) as system:
        persona = Persona(plan)
        system.model.respond(persona)
        config = agent_pb.ModelConfig(
            handle="openai/test-model", context_window=plan.window, parallel_tool_calls=True
        )
        request = agent_pb.CreateAgentRequest(name="companion", model=config)
        made = await system.agents.CreateAgent(request)
        session_ = Session(system, plan, persona, made.agent)
        began = time.monotonic()
        asked = await session_.run()
        seconds = time.monotonic() - began
        log = await session_.log()
        sys.stdout.write(
            f"\n{plan.turns} turns in {seconds:.0f} s, {session_.compactions} compactions,"
            f" {persona.summaries} summaries asked for, longest prompt {persona.most} of"
            f" {plan.window} tokens, {len(log)} messages,"
            f" {[cost.sql for cost in session_.costs]} statements a turn\n"
        )

        results, expanded = returns_of(asked)
        assert any(FACT in result["content"] for result in results["results"])
        assert any(FACT in message["content"] for message in expanded["messages"])

        assert session_.compactions >= compactions
        assert persona.refused == 0, "no prompt exceeded the window"
        assert persona.most <= plan.window
        assert persona.fussy == (plan.turns - 1) // 70
        assert system.model.violations == []
        assert_alternates(log, plan.turns)
        # Each compaction stores one summary in the log.
        assert roles(log).count("summary") == session_.compactions
        young, old = session_.costs
        assert young.shape() == old.shape(), f"{young}\n{old}"
        assert Counter(young.internal).total() == 6, young


@pytest.mark.timeout(300)
async def test_a_session_of_120_turns_and_ten_compactions_has_no_failure(
    databases: Any, vectors: Any
) -> None:
    await session(databases, vectors, Plan(4_096, 120, 90, (50, 100)), 10)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
async def test_a_session_of_2000_turns_has_no_failure(databases: Any, vectors: Any) -> None:
    await session(databases, vectors, Plan(8_000, 2_000, 150, (50, 1_950)), 30)

"""The space for core memory, and the order in which its limit is changed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.agent_loop.agents.prompt_budget import PromptBudget, budget_of
from strata.agent_loop.agents.prompt_limits import PromptLimits
from strata.agent_loop.context.token_budget import MESSAGES_SHARE, TokenBudget
from strata.agent_loop.domain.agent.agents import Agent, AgentPatch, ModelConfig, apply_patch
from strata.agent_loop.domain.agent.commands import UpdateAgent
from strata.agent_loop.domain.agent.store import AgentStore
from strata.agent_loop.domain.model.chat import ChatModel, EndpointType, ModelSettings, ToolSchema
from strata.agent_loop.domain.model.errors import ModelError, ModelErrorKind
from strata.agent_loop.domain.model.keys import SealedKey
from strata.agent_loop.domain.ports import ArchivalStats, BoundModel, Models, PromptLimit, Tools
from strata.agent_loop.domain.tools import Tool, ToolSet
from strata.agent_loop.models.dialects.table import DIALECTS
from strata.agent_loop.models.tokens import TokenEstimator, tools_bytes
from strata.agent_loop.prompts.system_message import Metadata, archival_lines, assemble
from strata.protocol.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    Reason,
    StrataError,
    UnavailableError,
)
from strata.shared.agent_types import AgentType
from strata.shared.clock import ManualClock
from strata.shared.idempotency.keys import RequestKey

NOW = datetime(2026, 11, 22, 9, 0, tzinfo=UTC)
TOOL = ToolSchema("look", "Looks something up.", {"type": "object", "properties": {}})


class Bound:
    """A model that is never called."""


def bound(window: int, endpoint: EndpointType = "openai", **more: Any) -> BoundModel:
    settings = ModelSettings("e/m", endpoint, "m", context_window=window, **more)
    return BoundModel(cast("ChatModel", Bound()), settings)


def agent_with(system: str = "Be kind.", window: int | None = None, **more: Any) -> Agent:
    config = ModelConfig(context_window=window)
    return Agent("agent-1", "Bo", AgentType.LETTA_V1, system, model=config, **more)


def budget(agent: Agent, model: BoundModel, tools: Sequence[ToolSchema] = ()) -> PromptBudget:
    return budget_of(agent, model, tools, TokenEstimator(), ManualClock(NOW))


@given(
    window=st.integers(4_096, 200_000),
    most=st.none() | st.integers(0, 200_000),
    endpoint=st.sampled_from(sorted(DIALECTS)),
    system=st.text(max_size=3_000),
    tools=st.integers(0, 5),
)
def test_memory_within_its_limit_always_fits_into_the_context_window(
    window: int, most: int | None, endpoint: EndpointType, system: str, tools: int
) -> None:
    """Memory of the largest allowed size still leaves space for messages."""
    agent, model = agent_with(system), bound(window, endpoint, max_tokens=most)
    schemas = [TOOL] * tools
    computed = budget(agent, model, schemas)
    token_budget = TokenBudget(TokenEstimator(), model.settings, agent.id)
    metadata = Metadata(NOW, "UTC", NOW, 999_999, archival_lines(ArchivalStats(999_999), ()))
    sent = tools_bytes(schemas) + len(assemble(system, "", metadata).encode())
    assert computed.fixed >= sent
    # The section is separated from the metadata by an empty line.
    whole = sent + computed.limit.bytes + 2
    if computed.memory_bytes >= 0:
        computed.check()
        assert token_budget.max_bytes - whole >= MESSAGES_SHARE * token_budget.max_bytes - 8
        assert token_budget.least(whole) <= token_budget.usable_tokens < window
    else:
        with pytest.raises(FailedPreconditionError) as caught:
            computed.check()
        assert caught.value.reason is Reason.CONTEXT_WINDOW_EXCEEDED
        sizes = {key: caught.value.metadata[key] for key in ("size", "limit", "context_window")}
        assert int(sizes["size"]) - int(sizes["limit"]) == -computed.memory_bytes
        assert sizes["context_window"] == str(window)
        assert computed.limit.bytes == 0


def test_the_budget_subtracts_the_fixed_parts_and_the_share_of_messages() -> None:
    computed = budget(agent_with("x" * 1_000), bound(10_000, max_tokens=2_000), [TOOL])
    # Nine tenths of 8,000 tokens of 3.2 bytes.
    assert computed.usable == 23_040
    assert computed.fixed == 1_000 + 2 + tools_bytes([TOOL]) + METADATA
    assert computed.memory_bytes == 23_040 - 2_304 - computed.fixed
    # A quarter of the prompt is kept free of files.
    files_bytes = 23_040 * 3 // 4 - computed.fixed
    assert computed.limit == PromptLimit(
        computed.memory_bytes, files_bytes=files_bytes, max_files_open=5, file_view_chars=15_000
    )


METADATA = len(
    "<memory_metadata>\n- The current system date is: November 22, 2026\n"
    "- Memory blocks were last modified: 2026-11-22 09:00:00 AM UTC+0000\n"
    "- 1000000 previous messages between you and the user are stored in recall memory"
    " (use tools to access them)\n- 1000000 total memories you created are stored in archival"
    " memory (use tools to access them)\n</memory_metadata>"
)


def test_larger_fixed_parts_leave_less_space_for_memory() -> None:
    agent, model = agent_with(), bound(32_000)
    plain = budget(agent, model)
    assert budget(agent_with("Be kind. And short."), model).leaves_less_than(plain)
    assert budget(agent, model, [TOOL]).leaves_less_than(plain)
    assert budget(agent_with(tools=("memory_finish_edits",)), model).leaves_less_than(plain)
    assert budget(agent, bound(31_000)).leaves_less_than(plain)
    assert budget(agent, bound(32_000, max_tokens=100)).leaves_less_than(plain)
    numbered = budget(agent, bound(64_000, "anthropic"))
    assert numbered.limit.line_numbers
    assert numbered.leaves_less_than(plain), "numbers of lines take space"
    assert not plain.leaves_less_than(plain)


class Died(BaseException):
    """Simulates the death of the process."""


async def _accept(agent: Agent) -> None:
    """Accepts every change."""


@dataclass
class Services:
    """An agent in one service and its limit in another; calls can fail or be the last ones.

    Attributes:
        agent: The stored agent.
        limit: Its limit in core memory.
        used: The size of its memory.
        dies_at: Number of the call at which the process dies, from 0.
        dies_after: It dies after the call had its effect.
        refuses: The error of the store at a change.
        calls: The calls, in order.
    """

    agent: Agent
    limit: PromptLimit | None
    used: int = 0
    dies_at: int = -1
    dies_after: bool = False
    refuses: StrataError | None = None
    seen: dict[str, Agent] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    def _call(self, name: str) -> bool:
        """Records a call; returns whether the process dies after its effect."""
        self.calls.append(name)
        dies = len(self.calls) - 1 == self.dies_at
        if dies and not self.dies_after:
            raise Died
        return dies

    async def known_agent(self, request: RequestKey) -> Agent | None:
        return self.seen.get(request.id)

    async def load(self, agent_id: str, conversation_id: str) -> Agent:
        return self.agent

    async def update(self, patch: AgentPatch, request: RequestKey) -> Agent:
        dies = self._call("store")
        if self.refuses is not None:
            raise self.refuses
        self.agent = apply_patch(self.agent, patch)
        if request.id:
            self.seen[request.id] = self.agent
        if dies:
            raise Died
        return self.agent

    async def raise_limit(self, agent_id: str, limit: PromptLimit | None) -> PromptLimit | None:
        dies = self._call("raise")
        before = self.limit
        if limit is not None and self.used > limit.bytes:
            raise FailedPreconditionError("no", reason=Reason.CONTEXT_WINDOW_EXCEEDED)
        if before is None or limit is None:
            self.limit = None
        else:
            self.limit = PromptLimit(max(before.bytes, limit.bytes))
        if dies:
            raise Died
        return before

    async def set_limit(self, agent_id: str, limit: PromptLimit | None, revision: int) -> None:
        dies = self._call("set")
        assert revision <= self.agent.revision
        self.limit = limit
        if dies:
            raise Died

    async def resolve(
        self,
        names: Sequence[str],
        *,
        skip_missing: bool = False,
        run_id: str = "",
        max_bytes: int = 0,
    ) -> ToolSet:
        return ToolSet(tuple(Tool(replace(TOOL, name=name)) for name in names))

    async def bind(
        self, config: ModelConfig, keys: Sequence[SealedKey] = (), *, as_fallback: bool = False
    ) -> BoundModel:
        if config.handle == "gone/model":
            raise ModelError(ModelErrorKind.NOT_CONFIGURED, "There is none.")
        return bound(config.context_window or 32_000)

    @property
    def limits(self) -> PromptLimits:
        """The tested object."""
        return PromptLimits(
            cast("AgentStore", self),
            self,
            cast("Tools", self),
            cast("Models", self),
            TokenEstimator(),
            ManualClock(NOW),
        )

    def change(self, request_id: str = "", **patch: Any) -> Agent:
        """Changes the agent, and returns the stored one."""
        command = UpdateAgent(AgentPatch("agent-1", **patch), RequestKey(request_id))
        return asyncio.run(self.limits.change(command, _accept))

    @property
    def right_limit(self) -> PromptLimit | None:
        """The limit that the stored agent should have."""
        computed = asyncio.run(self.limits.budget(self.agent))
        return computed.limit if computed is not None else None


def services(window: int, **more: Any) -> Services:
    made = Services(agent_with(window=window), None, **more)
    made.limit = made.right_limit
    return made


CONFIGS = st.one_of(
    st.integers(4_096, 64_000).map(lambda window: ModelConfig(context_window=window)),
    st.just(ModelConfig(handle="gone/model")),
)


@given(
    first=CONFIGS,
    then=CONFIGS,
    system=st.none() | st.integers(0, 20_000).map("x".__mul__),
    dies_at=st.integers(0, 3),
    dies_after=st.booleans(),
)
def test_a_crash_at_any_point_never_leaves_a_limit_that_is_too_small(
    first: ModelConfig, then: ModelConfig, system: str | None, dies_at: int, dies_after: bool
) -> None:
    harness = Services(replace(agent_with(), model=first), None)
    harness.limit = harness.right_limit
    harness.dies_at, harness.dies_after = dies_at, dies_after
    try:
        harness.change("request-1", model=then, system=system)
    except Died:
        right = harness.right_limit
        assert harness.limit is None or (right is not None and harness.limit.bytes >= right.bytes)
    except FailedPreconditionError:
        assert (harness.agent.model, harness.limit) == (first, harness.right_limit)
        return
    # The client repeats a request without an answer.
    harness.dies_at = -1
    harness.change("request-1", model=then, system=system)
    assert harness.agent.model == then
    assert harness.limit == harness.right_limit
    assert harness.agent.revision == 2


@pytest.mark.parametrize("window", [8_000, 64_000])
@pytest.mark.parametrize(
    "refusal",
    [AlreadyExistsError("taken", reason=Reason.NAME_TAKEN), UnavailableError("gone")],
)
def test_a_change_that_is_not_stored_keeps_the_old_limit(window: int, refusal: StrataError) -> None:
    harness = services(16_000, refuses=refusal)
    before = harness.limit
    with pytest.raises(type(refusal)):
        harness.change(model=ModelConfig(context_window=window))
    assert harness.limit == before
    assert harness.calls == ["raise", "store", "set"]


def test_a_model_with_too_small_a_context_window_is_refused_before_anything_is_stored() -> None:
    harness = services(16_000, used=20_000)
    with pytest.raises(FailedPreconditionError):
        harness.change(model=ModelConfig(context_window=4_096))
    assert harness.calls == ["raise"]
    harness.change(model=ModelConfig(context_window=12_000))
    assert harness.limit == harness.right_limit


def test_change_that_does_not_reduce_space_is_allowed_above_the_limit() -> None:
    harness = services(8_000, used=40_000)
    assert harness.change(model=ModelConfig(context_window=8_000, temperature=0.1)).revision == 2
    assert harness.change(model=ModelConfig(context_window=9_000)).revision == 3
    assert harness.change(system="Kind.").revision == 4
    with pytest.raises(FailedPreconditionError):
        harness.change(system="Be kind.")
    assert harness.limit == harness.right_limit


def test_a_system_prompt_that_is_too_long_is_refused_without_asking_core_memory() -> None:
    harness = services(4_096)
    with pytest.raises(FailedPreconditionError):
        harness.change(system="x" * 12_000)
    assert harness.calls == []


def test_without_a_model_there_is_no_limit() -> None:
    harness = services(8_000, used=40_000)
    harness.change(model=ModelConfig(handle="gone/model"))
    assert harness.limit is None
    with pytest.raises(FailedPreconditionError):
        harness.change(model=ModelConfig(context_window=8_000))
    assert harness.limit is None


def test_repeated_request_gets_its_answer_and_sets_the_current_limit() -> None:
    harness = services(8_000)
    first = harness.change("request-1", model=ModelConfig(context_window=9_000))
    harness.change("request-2", model=ModelConfig(context_window=64_000))
    harness.used = 60_000
    assert harness.change("request-1", model=ModelConfig(context_window=9_000)) == first
    assert harness.agent.model.context_window == 64_000
    assert harness.limit == harness.right_limit

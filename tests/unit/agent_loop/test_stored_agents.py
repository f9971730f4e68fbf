"""Rows of agents, and stored answers of older releases."""

from __future__ import annotations

from datetime import UTC, datetime

from strata.agent_loop.domain.agent.agents import Agent
from strata.agent_loop.store.rows import agent_parameters, answer, to_agent
from strata.shared.agent_types import AgentType

NOW = datetime(2026, 11, 26, tzinfo=UTC)
AGENT = Agent(
    "agent-1",
    "Bo",
    AgentType.REACT,
    "Base.",
    max_files_open=3,
    message_buffer_autoclear=True,
    external_id="crm/4711",
    revision=7,
    create_time=NOW,
    update_time=NOW,
)
ROW = {**agent_parameters(AGENT), "revision": 7, "create_time": NOW, "update_time": NOW}


def test_an_agent_is_read_from_its_row_and_from_a_stored_answer() -> None:
    assert to_agent(ROW) == AGENT
    assert to_agent(answer(ROW)) == AGENT


def test_column_that_an_older_answer_lacks_gets_its_default() -> None:
    older = {name: value for name, value in answer(ROW).items() if name != "external_id"}
    assert to_agent(older).external_id == ""
    assert to_agent(older).max_files_open == 3

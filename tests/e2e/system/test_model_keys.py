"""API keys of a project or an agent for model providers, as the provider receives them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio

from doubles.script import Dialect, ModelCall, say, unauthorized
from metering import store_events_at_the_end
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.agent_loop.v1 import model_service_pb2 as pb
from strata.protocol.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    Reason,
)
from strata.shared.ids import new_id
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

SETTINGS = "key"
"""The API key of the models in the settings of the running system."""


@pytest_asyncio.fixture(loop_scope="session", autouse=True)
async def _no_keys_left(system: System) -> AsyncIterator[None]:
    yield
    for provider in ("openai", "anthropic", "openai_responses"):
        await put(system, provider, "")


async def put(system: System, provider: str, key: str, agent: agent_pb.Agent | None = None) -> None:
    request = pb.PutModelKeyRequest(
        provider=provider, api_key=key, agent_id=agent.id if agent else ""
    )
    assert await system.models.PutModelKey(request) == pb.PutModelKeyResponse()


def key_of(call: ModelCall) -> str:
    """Returns the key of a request; asserts that no header has another key."""
    scheme, _, key = call.headers["authorization"].partition(" ")
    assert scheme == "Bearer"
    # Servers compatible with Anthropic may accept only its older header, so they get both.
    expected = key if call.dialect == "anthropic" else None
    assert call.headers.get("x-api-key") == expected
    return key


async def sent_key(system: System, agent: agent_pb.Agent) -> str:
    system.model.requests.clear()
    system.model.script(say("Yes."))
    assert (await system.send(agent, "Are you there?")).text == "Yes."
    (call,) = system.model.requests
    return key_of(call)


async def test_a_key_of_the_agent_precedes_that_of_the_project_and_the_settings(
    system: System, dialect: Dialect
) -> None:
    ann, bob = [await system.make_agent(f"{dialect}/test-model") for _ in range(2)]
    assert [await sent_key(system, agent) for agent in (ann, bob)] == [SETTINGS, SETTINGS]

    await put(system, dialect, "project-key")
    assert [await sent_key(system, agent) for agent in (ann, bob)] == ["project-key", "project-key"]

    await put(system, dialect, "ann-key", ann)
    await put(system, dialect, "bob-key", bob)
    assert [await sent_key(system, agent) for agent in (ann, bob)] == ["ann-key", "bob-key"]

    await put(system, dialect, "ann-key-2", ann)
    await put(system, dialect, "", bob)
    assert [await sent_key(system, agent) for agent in (ann, bob)] == ["ann-key-2", "project-key"]

    await put(system, dialect, "", ann)
    await put(system, dialect, "")
    assert [await sent_key(system, agent) for agent in (ann, bob)] == [SETTINGS, SETTINGS]


async def test_a_key_is_used_for_its_endpoint_only(system: System) -> None:
    agent = await system.make_agent("anthropic/test-model")
    await put(system, "openai", "openai-key", agent)
    assert await sent_key(system, agent) == SETTINGS


async def test_a_refused_key_is_named_and_not_shown(system: System, dialect: Dialect) -> None:
    agent = await system.make_agent(f"{dialect}/test-model")

    async def refusal() -> str:
        system.model.script(unauthorized())
        error = (await system.send(agent, "Hello?")).finished.error
        assert error.reason == "MODEL_AUTHENTICATION"
        return error.message

    assert f'the key for "{dialect}" in the settings of the server' in await refusal()
    await put(system, dialect, "sk-project-secret")
    message = await refusal()
    assert f'the project\'s key for "{dialect}"' in message
    await put(system, dialect, "sk-agent-secret", agent)
    message += await refusal()
    assert f'the agent\'s own key for "{dialect}"' in message
    assert "secret" not in message


async def test_a_stored_key_cannot_be_found_in_the_database(system: System) -> None:
    agent = await system.make_agent("openai/test-model")
    await put(system, "openai", "sk-needle-in-the-database", agent)
    connection = await asyncpg.connect(system.urls["agent_loop"].admin_url)
    try:
        rows = await connection.fetch("SELECT * FROM agent_loop.model_keys")
        assert agent.id in {row["agent_id"] for row in rows}
        assert all(b"needle" not in row["sealed"] for row in rows)
        # A row that is moved to another agent cannot be decrypted for it.
        other = await system.make_agent("openai/test-model")
        await connection.execute(
            "UPDATE agent_loop.model_keys SET agent_id = $2 WHERE agent_id = $1", agent.id, other.id
        )
    finally:
        await connection.close()
    ran = await system.send(other, "Hello?")
    assert ran.finished.error.reason == "MODEL_AUTHENTICATION"
    assert "strata models key set openai" in ran.finished.error.message
    assert system.model.requests == []
    assert len(await system.log(other)) == 2, "the log holds the system message and the input"


async def test_keys_are_deleted_with_their_agent(system: System) -> None:
    agent = await system.make_agent("openai/test-model")
    await put(system, "openai", "some-key", agent)
    await system.agents.DeleteAgent(agent_pb.DeleteAgentRequest(agent_id=agent.id))
    connection = await asyncpg.connect(system.urls["agent_loop"].admin_url)
    try:
        query = "SELECT count(*) FROM agent_loop.model_keys WHERE agent_id = $1"
        assert await connection.fetchval(query, agent.id) == 0
    finally:
        await connection.close()
    with pytest.raises(NotFoundError) as caught:
        await put(system, "openai", "some-key", agent)
    assert caught.value.reason is Reason.AGENT_NOT_FOUND


@pytest.mark.parametrize("key", ["some-key", ""])
async def test_a_key_for_an_unknown_endpoint_or_agent_is_refused(system: System, key: str) -> None:
    with pytest.raises(FailedPreconditionError) as caught:
        await put(system, "opanai", key)
    assert caught.value.reason is Reason.MODEL_NOT_CONFIGURED
    assert "openai, anthropic" in caught.value.message
    request = pb.PutModelKeyRequest(provider="openai", api_key=key, agent_id=new_id("agent"))
    with pytest.raises(NotFoundError) as missing:
        await system.models.PutModelKey(request)
    assert missing.value.reason is Reason.AGENT_NOT_FOUND


@pytest.mark.parametrize("key", ["two words", "line\r\nx-evil: 1", "naïve", "k" * 4097, "\0"])
async def test_text_that_is_not_a_header_value_is_not_a_key(system: System, key: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        await put(system, "openai", key)
    assert [violation.field for violation in caught.value.violations] == ["api_key"]
    assert key not in str(caught.value)


async def test_stored_keys_add_no_sql_statement_to_a_turn(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_events_at_the_end(monkeypatch)
    agent = await system.make_agent("openai/test-model")
    await sent_key(system, agent)
    costs = []
    for key in ("", "some-key"):
        if key:
            await put(system, "openai", key, agent)
        system.model.script(say("Yes."))
        async with system.measure() as cost:
            await system.send(agent, "Are you there?")
        costs.append(cost.shape())
    assert costs[0][0]
    assert costs[0] == costs[1]


async def test_models_are_listed_with_the_projects_key(system: System) -> None:
    await put(system, "openai", "project-key")
    listed = await system.models.ListModels(pb.ListModelsRequest())
    assert [endpoint.reachable for endpoint in listed.endpoints] == [True] * 3
    assert "project-key" not in str(listed)

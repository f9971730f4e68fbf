"""The generated methods of the Python client, with a complete Strata."""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from doubles.script import say
from strata.api.archival.v1.passage_service_pb2 import NewPassage
from strata.api.common.v1 import message_pb2
from strata.api.core_memory.v1 import file_service_pb2
from strata.client import (
    AlreadyExistsError,
    Client,
    InvalidArgumentError,
    NotFoundError,
    Reason,
    StrataError,
    SyncClient,
    connect_sync,
)
from strata.client.calls.on_thread import OnThread
from strata.client.generated.clients import ServiceCalls
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_agents_are_created_read_changed_listed_and_deleted(client: Client) -> None:
    agent = await client.agents.create(
        name="calls-cashier",
        type="react",
        model="openai/test-model",
        tags=["calls"],
        metadata={"shop": "7"},
        include_base_tools=False,
    )
    other = await client.agents.create(tags=["calls"])
    assert (agent.name, agent.model.handle) == ("calls-cashier", "openai/test-model")

    assert await client.agents.get("calls-cashier") == agent
    assert await client.agents.get(agent.id) == await client.agents.get(agent) == agent

    changed = await client.agents.update(
        "calls-cashier", tags=["calls", "new"], description="Pays."
    )
    assert (list(changed.tags), changed.description) == (["calls", "new"], "Pays.")
    assert dict(changed.metadata) == {"shop": "7"}

    pages_of_one = client.agents.list(tags=["calls"], page_size=1)
    assert [listed.id async for listed in pages_of_one] == [agent.id, other.id]

    await client.agents.delete(agent)
    with pytest.raises(NotFoundError, match="calls-cashier") as gone:
        await client.agents.update("calls-cashier", description="")
    assert gone.value.reason is Reason.AGENT_NOT_FOUND
    await client.agents.delete(other.id)


async def test_the_memory_of_an_agent_is_read_and_changed(client: Client) -> None:
    agent = await client.agents.create(name="calls-memory", blocks={"human": "Ann", "notes": ""})
    labels = [block.label async for block in client.blocks.list(agent_id="calls-memory")]
    assert labels == ["human", "notes"]

    block = await client.blocks.get(agent_id=agent, label="human")
    changed = await client.blocks.update(
        block, value="Ann, of Lisbon", base_revision=block.revision
    )
    assert changed.value == "Ann, of Lisbon"
    edited = await client.blocks.edit(agent_id=agent, label="notes", append="Likes trains.")
    assert edited.block.value == "Likes trains."
    versions = [version async for version in client.blocks.list_versions(block)]
    assert len(versions) == 2
    assert "+Ann, of Lisbon" in await client.blocks.diff(
        block, from_revision=block.revision, to_revision=changed.revision
    )
    reverted = await client.blocks.revert(block_id=block, revision=changed.revision)
    assert reverted.blocks[0].value == "Ann"

    shared = await client.blocks.create("rules", "Be brief.", read_only=True)
    await client.blocks.attach("calls-memory", shared)
    assert "Be brief." in (await client.blocks.render_memory(agent)).text
    await client.blocks.detach(agent, shared.id)
    await client.blocks.delete(shared)
    await client.agents.delete(agent)


async def test_passages_are_stored_searched_and_uploaded(client: Client) -> None:
    agent = await client.agents.create(name="calls-passages")
    inserted = await client.passages.insert(
        "She rides the night train to Porto.", agent_id="calls-passages", tags=["travel"]
    )
    uploaded = await client.passages.upload(
        ["He paints boats.", NewPassage(text="They sing.", tags=["music"])], agent_id=agent
    )
    assert uploaded.complete
    assert uploaded.inserted_count == 2

    response = await client.passages.search("night train", agent_id="calls-passages", top_k=1)
    assert [hit.passage.id for hit in response.hits] == [inserted.passage.id]
    tags = await client.passages.list_tags(agent_id=agent)
    assert [(tag.tag, tag.count) for tag in tags] == [("music", 1), ("travel", 1)]
    changed = await client.passages.update(inserted.passage, tags=[])
    assert (changed.text, list(changed.tags)) == (inserted.passage.text, [])
    await client.passages.delete(inserted.passage)
    listed = client.passages.list(agent_id=agent, page_size=1)
    assert [passage.text async for passage in listed] == ["He paints boats.", "They sing."]
    await client.agents.delete(agent)


async def test_an_upload_raises_the_error_of_its_iterator(client: Client) -> None:
    def passages() -> Iterator[str]:
        yield "The first one."
        raise ZeroDivisionError

    agent = await client.agents.create()
    with pytest.raises(ZeroDivisionError):
        await client.passages.upload(passages(), agent_id=agent)
    await client.agents.delete(agent)


async def test_messages_and_runs_are_listed_by_the_name_of_the_agent(
    system: System, client: Client
) -> None:
    agent = await client.agents.create(name="calls-talk")
    system.model.script(say("Porto is lovely in May."), say("Yes."), say("At night."))
    assert await client.ask("calls-talk", "Tell me of Porto.") == "Porto is lovely in May."
    conversation = await client.agents.create_conversation(agent, title="Trains")
    assert await client.ask(agent, "Are there trains?", conversation_id=conversation) == "Yes."

    replies = [
        message.parts[0].text.text
        async for message in client.messages.list(
            agent_id=agent, roles=["assistant"], order="newest_first", page_size=1
        )
    ]
    assert replies == ["Yes.", "Porto is lovely in May."]
    response = await client.messages.search("Porto", agent_id=agent, mode="full_text", limit=1)
    assert "Porto" in response.hits[0].message.parts[0].text.text
    pinned = await client.messages.pin(response.hits[0].message)
    assert pinned.id == response.hits[0].message.id
    exported = [message.role async for message in client.messages.export(agent_id=agent)]
    assert exported.count(message_pb2.ROLE_USER) >= 2

    run = await client.runs.start(agent_id=agent, messages="When?")
    events = [event async for event in client.resume(run)]
    assert events[-1].HasField("run_finished")
    runs = [run.id async for run in client.runs.list(agent_id=agent, states=["completed"])]
    assert runs[0] == run.id == (await client.runs.get(run)).id
    await client.agents.delete(agent)


async def test_files_are_uploaded_and_watched(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "trains.txt"
    file.write_text("The night train leaves at nine.\n")
    folder = await client.files.create_folder("calls-folder")
    uploaded = await client.files.upload(folder, file)
    assert uploaded.name == "trains.txt"
    states = [state.state async for state in client.files.watch(uploaded)]
    assert states[-1] == file_service_pb2.FILE_STATE_READY
    await client.files.upload(folder.id, b"By boat.", name="boats.txt")
    with pytest.raises(AlreadyExistsError):
        await client.files.upload(folder, b"By sea.", name="boats.txt")
    names = [listed.name async for listed in client.files.list(folder_id=folder, page_size=1)]
    assert sorted(names) == ["boats.txt", "trains.txt"]
    await client.files.delete_folder(folder)


async def test_a_schedule_accepts_a_text_and_a_time(client: Client) -> None:
    agent = await client.agents.create(name="calls-clock")
    tomorrow = dt.datetime.now(dt.UTC).replace(microsecond=0) + dt.timedelta(days=1)
    schedule = await client.schedules.create(
        name="calls-tomorrow", agent_id="calls-clock", messages="Good morning.", start_time=tomorrow
    )
    assert schedule.start_time.ToDatetime(dt.UTC) == tomorrow
    assert schedule.messages[0].role == message_pb2.ROLE_USER
    paused = await client.schedules.pause(schedule)
    assert [listed async for listed in client.schedules.list(agent_id=agent)] == [paused]
    await client.schedules.delete(schedule)
    await client.agents.delete(agent)


async def test_every_method_sends_a_request_that_the_server_can_parse(client: Client) -> None:
    methods = {
        f"{service}.{name}": method
        for service in vars(ServiceCalls)
        if not service.startswith("_")
        for name, method in inspect.getmembers(getattr(client, service), inspect.isroutine)
        if not name.startswith("_") and name.islower()
    }
    assert len(methods) > 140

    async def call(name: str) -> str:
        method = methods[name]
        required = [
            parameter.name
            for parameter in inspect.signature(method).parameters.values()
            if parameter.default is inspect.Parameter.empty
        ]
        # An empty query is refused before anything is embedded.
        values = {"content": b"content", "query": ""}
        arguments: dict[str, Any] = {name: values.get(name, "unknown") for name in required}
        if name == "passages.upload":
            arguments = {"passages": ["Text."]}
        try:
            result = method(**arguments)
            if inspect.isasyncgen(result):
                async for _ in result:
                    break
            else:
                await result
        except StrataError as error:
            return "NOT_BUILT" if error.reason is Reason.NOT_BUILT else error.status
        return "OK"

    statuses = {name: await call(name) for name in methods}
    expected = {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED", "NOT_BUILT"}
    assert set(statuses.values()) <= expected, statuses
    assert statuses["agents.list"] == "OK"
    assert statuses["agents.get"] == "NOT_FOUND"


async def test_the_synchronous_client_has_the_same_methods(system: System) -> None:
    def work(client: SyncClient) -> None:
        agent = client.agents.create(name="calls-sync", blocks={"human": "Ann"})
        assert [listed.name for listed in client.agents.list(name_contains="calls-sync")] == [
            "calls-sync"
        ]
        [block] = client.blocks.list(agent_id="calls-sync")
        assert client.blocks.update(block, value="Bob").value == "Bob"
        assert client.ask("calls-sync", "Hello!") == "Hello, Bob."
        client.passages.upload(["They sing."], agent_id=agent)
        client.agents.delete(agent)
        with pytest.raises(NotFoundError):
            client.agents.get("calls-sync")

    def connect_and_work() -> None:
        with connect_sync(system.address, api_key=system.key) as client:
            work(client)

    system.model.script(say("Hello, Bob."))
    await asyncio.to_thread(connect_and_work)


async def test_both_clients_have_the_same_methods_with_the_same_arguments() -> None:
    for service, calls in vars(ServiceCalls).items():
        if service.startswith("_"):
            continue
        async_class = calls.func.__annotations__["return"]
        module = inspect.getmodule(calls.func)
        sync = getattr(module, f"Sync{async_class}")
        assert issubclass(sync, OnThread)
        for name, method in inspect.getmembers(getattr(module, async_class), inspect.isfunction):
            if name.startswith("_"):
                continue
            twin = inspect.signature(getattr(sync, name))
            assert twin.parameters == inspect.signature(method).parameters, name
            assert getattr(sync, name).__doc__, name


async def test_invalid_arguments_are_refused_before_they_are_sent(
    client: Client,
) -> None:
    with pytest.raises(InvalidArgumentError, match="tools must be a list, not a text"):
        await client.agents.create(tools="send_message")
    with pytest.raises(InvalidArgumentError, match="type must be one of: letta_v1, "):
        await client.agents.create(type="clever")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="start_time must have a time zone"):
        await client.admin.get_usage(start_time=dt.datetime(2030, 1, 1))  # noqa: DTZ001
    with pytest.raises(InvalidArgumentError, match="name is needed for bytes"):
        await client.files.upload("folder", b"content")

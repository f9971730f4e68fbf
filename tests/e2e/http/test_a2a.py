"""The client of the A2A SDK in front of agents."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import httpx
import httpx2
import pytest
import pytest_asyncio
from a2a.types import a2a_pb2 as a2a
from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from google.protobuf import json_format

from doubles.script import Call, Fault, Reply, call, say
from image_samples import png
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.common.v1 import message_pb2, tool_pb2
from strata.api.gateway.v1 import admin_service_pb2 as admin_pb
from strata.api.tool_execution.v1 import tool_service_pb2 as tool_api
from strata.shared.ids import new_id
from strata.shared.scopes import Scope
from whole_system import System

if TYPE_CHECKING:
    from a2a.client import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")

VERSIONS = ("1.0", "0.3")
PDF = a2a.Part(raw=b"%PDF", media_type="application/pdf")
GATED = "send_parcel"
"""A tool whose calls a person approves."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def idle_agent(running_system: System) -> agent_pb.Agent:
    """An agent that receives no messages."""
    return await running_system.make_agent()


@asynccontextmanager
async def client_of(
    system: System,
    agent: agent_pb.Agent,
    *,
    version: str = "1.0",
    key: str = "",
    streaming: bool = True,
) -> AsyncIterator[Client]:
    """Opens a client with only the address of the agent and the key."""
    # The import takes a second, which not every process that collects the tests has to spend.
    from a2a.client import ClientConfig, ClientFactory  # noqa: PLC0415
    from a2a.client.card_resolver import A2ACardResolver  # noqa: PLC0415

    headers = {"authorization": f"Bearer {key or system.key}"}
    async with httpx.AsyncClient(headers=headers, timeout=60) as http:
        card = await A2ACardResolver(
            http, f"{system.http_url}/a2a/{agent.name.replace(' ', '%20')}"
        ).get_agent_card()
        offered = [one for one in card.supported_interfaces if one.protocol_version == version]
        card.ClearField("supported_interfaces")
        card.supported_interfaces.extend(offered)
        yield ClientFactory(ClientConfig(httpx_client=http, streaming=streaming)).create(card)


def message(text: str = "", *parts: a2a.Part, **fields: Any) -> a2a.SendMessageRequest:
    """Returns a request that sends a message."""
    texts = [a2a.Part(text=text)] if text else []
    return a2a.SendMessageRequest(
        message=a2a.Message(
            **{"message_id": new_id("m"), "role": a2a.ROLE_USER, **fields},
            parts=[*texts, *parts],
        )
    )


async def events_of(
    client: Client, request: a2a.SendMessageRequest
) -> Sequence[a2a.StreamResponse]:
    return [event async for event in client.send_message(request)]


async def task_of(client: Client, request: a2a.SendMessageRequest) -> a2a.Task:
    """Sends a message with a client that does not stream."""
    [event] = await events_of(client, request)
    return event.task


def text_of_artifacts(task: a2a.Task) -> str:
    return "|".join(part.text for artifact in task.artifacts for part in artifact.parts)


def streamed_text(events: Sequence[a2a.StreamResponse]) -> str:
    """Returns the text of artifacts, as a client assembles it."""
    text = ""
    for event in events:
        if event.HasField("artifact_update"):
            piece = "".join(part.text for part in event.artifact_update.artifact.parts)
            text = text + piece if event.artifact_update.append else piece
    return text


def state_after(events: Sequence[a2a.StreamResponse]) -> a2a.TaskState:
    """Returns the state of a task after events."""
    last = events[-1]
    return (last.task if last.HasField("task") else last.status_update).status.state


def calls_for_which_it_waits(events: Sequence[a2a.StreamResponse]) -> list[str]:
    """Returns the ids of the tool calls for which a task waits after events."""
    assert state_after(events) == a2a.TASK_STATE_INPUT_REQUIRED
    last = events[-1]
    status = (last.task if last.HasField("task") else last.status_update).status
    calls = json_format.MessageToDict(status.message.parts[1].data)["toolCalls"]
    return [one["toolCallId"] for one in calls]


def artifacts_after(events: Sequence[a2a.StreamResponse]) -> list[str]:
    """Returns the texts of the artifacts of a task after events."""
    texts: dict[str, str] = {}
    for event in events:
        artifacts = [*event.task.artifacts]
        update = event.artifact_update
        artifacts += [update.artifact] if event.HasField("artifact_update") else []
        for artifact in artifacts:
            before = texts.get(artifact.artifact_id, "") if update.append else ""
            texts[artifact.artifact_id] = before + "".join(part.text for part in artifact.parts)
    return list(texts.values())


async def gated_agent(system: System) -> agent_pb.Agent:
    await system.tools.UpsertTool(
        tool_api.UpsertToolRequest(
            source_code=f"def {GATED}(to: str) -> str:\n"
            '    """Sends a parcel.\n\n    Args:\n        to: Who gets it.\n    """\n'
            "    return f'sent to {to}'\n",
            default_requires_approval=True,
        )
    )
    return await system.make_agent(tools=[GATED])


def answer(task: a2a.Task, **decision: Any) -> a2a.SendMessageRequest:
    """Answers the one call for which a task waits."""
    question = json_format.MessageToDict(task.status.message.parts[1].data)
    [asked] = question["toolCalls"]
    data = a2a.Part()
    decisions = [{"toolCallId": asked["toolCallId"], **decision}]
    json_format.ParseDict({"decisions": decisions}, data.data)
    return message("", data, task_id=task.id, context_id=task.context_id)


@pytest.mark.parametrize("version", VERSIONS)
async def test_message_is_a_run_and_its_task_can_be_read_again(
    system: System, version: str
) -> None:
    system.model.script(say("Good morning."))
    agent = await system.make_agent()
    async with client_of(system, agent, version=version, streaming=False) as client:
        task = await task_of(client, message("Hello."))
        assert text_of_artifacts(task) == "Good morning."
        assert task.status.state == a2a.TASK_STATE_COMPLETED
        run = await system.run(task.id)
        assert (run.agent_id, run.conversation_id) == (agent.id, task.context_id)
        stored = await client.get_task(a2a.GetTaskRequest(id=task.id))
    assert stored == task


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_stream_contains_the_text_and_the_end_of_the_task(
    system: System, version: str
) -> None:
    system.model.script(
        Reply(text="Let me look.", calls=(Call("conversation_search", {"query": "x"}),)),
        # Pieces that arrive together are sent as one.
        say("There is nothing to be found.", pause=0.02),
    )
    agent = await system.make_agent()
    async with client_of(system, agent, version=version) as client:
        events = await events_of(client, message("Look."))
        task = await client.get_task(a2a.GetTaskRequest(id=events[0].task.id))
    assert events[0].task.status.state == a2a.TASK_STATE_WORKING
    assert len(events) > 5
    assert events[-2].artifact_update.last_chunk
    assert events[-1].status_update.status.state == a2a.TASK_STATE_COMPLETED
    assert streamed_text(events) == "Let me look.\n\nThere is nothing to be found."
    assert text_of_artifacts(task) == streamed_text(events)


async def test_a_restarted_reply_replaces_the_text_of_the_first(system: System) -> None:
    system.model.script(
        Reply(text="A reply that breaks off here.", piece=4, cut_after=5), say("Another one.")
    )
    agent = await system.make_agent()
    async with client_of(system, agent) as client:
        events = await events_of(client, message("Hello."))
    assert any("A re" in streamed_text([event]) for event in events)
    assert streamed_text(events) == "Another one."


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_context_id_identifies_the_conversation(system: System, version: str) -> None:
    system.model.respond(lambda request: say(f"{len(request.messages)}"))
    agent = await system.make_agent()
    async with client_of(system, agent, version=version, streaming=False) as client:
        first = await task_of(client, message("one"))
        second = await task_of(client, message("two", context_id=first.context_id))
        other = await task_of(client, message("three"))
        default = await task_of(client, message("four", context_id=agent.default_conversation_id))
    assert first.context_id == second.context_id
    assert len({first.context_id, other.context_id, default.context_id}) == 3
    assert [text_of_artifacts(task) for task in (first, second, other)] == ["2", "4", "2"]


async def test_a_client_may_choose_the_context_id(system: System) -> None:
    system.model.respond(lambda request: say(f"{len(request.messages)}"))
    agent, other = await system.make_agent(), await system.make_agent()
    async with client_of(system, agent, streaming=False) as client:
        tasks = [await task_of(client, message("Hello.", context_id="trip")) for _ in range(2)]
        stored = await client.get_task(a2a.GetTaskRequest(id=tasks[1].id))
    async with client_of(system, other, streaming=False) as client:
        elsewhere = await task_of(client, message("Hello.", context_id="trip"))
    assert {task.context_id for task in (*tasks, stored, elsewhere)} == {"trip"}
    assert [text_of_artifacts(task) for task in (*tasks, elsewhere)] == ["2", "4", "2"]


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_broken_stream_is_continued_by_a_subscription(system: System, version: str) -> None:
    release = asyncio.Event()
    system.model.script(Reply(text="A long reply of many pieces.", piece=2, held=release))
    agent = await system.make_agent()
    async with client_of(system, agent, version=version) as client:
        stream = client.send_message(message("Hello."))
        task_id = (await anext(stream)).task.id
        await stream.aclose()  # type: ignore[attr-defined]
        open_task = await client.get_task(a2a.GetTaskRequest(id=task_id))
        events = []
        async for event in client.subscribe(a2a.SubscribeToTaskRequest(id=task_id)):
            events.append(event)
            release.set()
        with pytest.raises(UnsupportedOperationError):
            _ = [e async for e in client.subscribe(a2a.SubscribeToTaskRequest(id=task_id))]
    assert open_task.status.state == a2a.TASK_STATE_WORKING
    assert events[0].task.id == task_id
    assert streamed_text(events) == "A long reply of many pieces."
    assert events[-1].status_update.status.state == a2a.TASK_STATE_COMPLETED


@pytest.mark.parametrize("version", VERSIONS)
async def test_an_active_task_is_cancelled(system: System, version: str) -> None:
    system.model.script(Reply(text="A long reply of many pieces.", piece=2, held=asyncio.Event()))
    agent = await system.make_agent()
    async with client_of(system, agent, version=version) as client:
        stream = client.send_message(message("Hello."))
        task_id = (await anext(stream)).task.id
        await client.cancel_task(a2a.CancelTaskRequest(id=task_id))
        events = [event async for event in stream]
        assert events[-1].status_update.status.state == a2a.TASK_STATE_CANCELED
        task = await client.get_task(a2a.GetTaskRequest(id=task_id))
        assert task.status.state == a2a.TASK_STATE_CANCELED
        with pytest.raises(TaskNotCancelableError):
            await client.cancel_task(a2a.CancelTaskRequest(id=task_id))


@pytest.mark.parametrize("version", VERSIONS)
async def test_decision_about_a_call_continues_the_task(system: System, version: str) -> None:
    agent = await gated_agent(system)
    system.model.script(
        Reply(text="I would send it.", calls=(Call(GATED, {"to": "Ada"}),)), say("It is sent.")
    )
    async with client_of(system, agent, version=version, streaming=False) as client:
        task = await task_of(client, message("Send it."))
        assert task.status.state == a2a.TASK_STATE_INPUT_REQUIRED
        with pytest.raises(InvalidParamsError, match="decisions"):
            await task_of(client, message("Yes.", task_id=task.id))
        with pytest.raises(TaskNotCancelableError):
            await client.cancel_task(a2a.CancelTaskRequest(id=task.id))
        # Another task of the context would wait for ever.
        with pytest.raises(UnsupportedOperationError):
            await task_of(client, message("And?", context_id=task.context_id))
        ended = await task_of(client, answer(task, approve=True))
        stored = await client.get_task(a2a.GetTaskRequest(id=task.id))
    assert (ended.id, ended.context_id) == (task.id, task.context_id)
    assert ended.status.state == a2a.TASK_STATE_COMPLETED
    assert text_of_artifacts(ended) == "I would send it.|It is sent."
    assert stored == ended


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_stream_ends_when_the_task_waits_and_the_answer_opens_another(
    system: System, version: str
) -> None:
    agent = await gated_agent(system)
    system.model.script(call(GATED, {"to": "Ada"}), say("Then not."))
    async with client_of(system, agent, version=version) as client:
        events = await events_of(client, message("Send it."))
        assert events[-1].status_update.status.state == a2a.TASK_STATE_INPUT_REQUIRED
        task = await client.get_task(a2a.GetTaskRequest(id=events[0].task.id))
        [subscribed] = [
            event async for event in client.subscribe(a2a.SubscribeToTaskRequest(id=task.id))
        ]
        rest = await events_of(client, answer(subscribed.task, approve=False, reason="No parcels."))
    assert rest[0].task.id == task.id
    assert streamed_text(rest) == "Then not."
    assert rest[-1].status_update.status.state == a2a.TASK_STATE_COMPLETED


@pytest.mark.parametrize("streaming", [False, True])
async def test_repeated_messages_return_the_task_as_it_is_now(
    system: System, streaming: bool
) -> None:
    agent = await gated_agent(system)
    system.model.script(
        Reply(text="I would send it.", calls=(Call(GATED, {"to": "Ada"}),)),
        Reply(text="And another.", calls=(Call(GATED, {"to": "Eve"}),)),
        say("Both are sent."),
    )
    first = message("Send them.")
    async with client_of(system, agent, streaming=False) as client:
        task = await task_of(client, first)
        answers = [answer(task, approve=True)]
        waiting = await task_of(client, answers[0])
        async with client_of(system, agent, streaming=streaming) as again:
            # The first response may have been lost: its task waits for the second answer.
            for request in (first, answers[0]):
                events = await events_of(again, request)
                assert calls_for_which_it_waits(events) == calls_for_which_it_waits(
                    [a2a.StreamResponse(task=waiting)]
                )
            answers.append(answer(waiting, approve=True))
            ended = await task_of(client, answers[1])
            for request in (first, *answers):
                assert state_after(await events_of(again, request)) == a2a.TASK_STATE_COMPLETED
                assert artifacts_after(await events_of(again, request)) == [
                    "I would send it.",
                    "And another.",
                    "Both are sent.",
                ]
        if not streaming:
            assert [await task_of(client, request) for request in (first, *answers)] == [ended] * 3
        first.configuration.return_immediately = True
        assert await task_of(client, first) == ended
        changed = answer(task, approve=False)
        changed.message.message_id = answers[0].message.message_id
        with pytest.raises(InvalidParamsError):
            await task_of(client, changed)
    assert len(system.model.requests) == 3


async def test_tasks_are_listed_in_order_of_their_last_change(system: System) -> None:
    system.model.respond(lambda request: say(f"{request.last_text.strip()} too"))
    agent = await system.make_agent()
    async with client_of(system, agent, streaming=False) as client:
        sent = [
            await task_of(client, message("one", context_id="trip")),
            await task_of(client, message("two")),
            await task_of(client, message("three", context_id="trip")),
        ]
        whole = await client.list_tasks(a2a.ListTasksRequest(include_artifacts=True))
        of_context = await client.list_tasks(a2a.ListTasksRequest(context_id="trip"))
        of_conversation = await client.list_tasks(
            a2a.ListTasksRequest(context_id=sent[1].context_id)
        )
        elsewhere = await client.list_tasks(a2a.ListTasksRequest(context_id="home"))
        since = a2a.ListTasksRequest(status_timestamp_after=whole.tasks[1].status.timestamp)
        recent = await client.list_tasks(since)
        pages: list[a2a.ListTasksResponse] = []
        token = ""
        while not pages or token:
            pages.append(
                await client.list_tasks(a2a.ListTasksRequest(page_size=2, page_token=token))
            )
            token = pages[-1].next_page_token
    newest_first = [task.id for task in reversed(sent)]
    assert [task.id for task in whole.tasks] == newest_first
    assert [text_of_artifacts(task) for task in whole.tasks] == ["three too", "two too", "one too"]
    assert (whole.total_size, whole.page_size, whole.next_page_token) == (3, 50, "")
    assert [task.id for task in of_context.tasks] == [sent[2].id, sent[0].id]
    assert {task.context_id for task in of_context.tasks} == {"trip"}
    assert not any(task.artifacts for task in of_context.tasks)
    assert [task.id for task in of_conversation.tasks] == [sent[1].id]
    assert (list(elsewhere.tasks), elsewhere.total_size) == ([], 0)
    assert [task.id for task in recent.tasks] == newest_first[:2]
    assert [[task.id for task in page.tasks] for page in pages] == [
        newest_first[:2],
        newest_first[2:],
    ]
    assert {page.total_size for page in pages} == {3}
    # Listing tasks does not start a conversation.
    conversations = await system.agents.ListConversations(
        agent_pb.ListConversationsRequest(agent_id=agent.id)
    )
    assert "home" not in {one.external_id for one in conversations.conversations}


async def test_listed_tasks_have_the_state_of_their_last_run(system: System) -> None:
    agent = await gated_agent(system)
    held = asyncio.Event()
    system.model.script(
        Reply(text="I would send it.", calls=(Call(GATED, {"to": "Ada"}),)),
        say("It is sent."),
        call(GATED, {"to": "Bea"}),
        Fault(400, "no such thing", type="invalid_request_error"),
        Reply(text="A long reply of many pieces.", piece=2, held=held),
    )
    at_once = message("Wait.")
    at_once.configuration.return_immediately = True
    async with client_of(system, agent, streaming=False) as client:
        sent = await task_of(client, message("Send it to Ada."))
        sent = await task_of(client, answer(sent, approve=True))
        waiting = await task_of(client, message("Send it to Bea."))
        failed = await task_of(client, message("Break."))
        working = await task_of(client, at_once)
        expected = {
            a2a.TASK_STATE_COMPLETED: sent,
            a2a.TASK_STATE_INPUT_REQUIRED: waiting,
            a2a.TASK_STATE_FAILED: failed,
        }
        for state, task in expected.items():
            listed = await client.list_tasks(a2a.ListTasksRequest(status=state))
            assert [one.id for one in listed.tasks] == [task.id], state
            assert listed.tasks[0].status.message == task.status.message
        for state in (a2a.TASK_STATE_CANCELED, a2a.TASK_STATE_REJECTED):
            assert not (await client.list_tasks(a2a.ListTasksRequest(status=state))).tasks
        whole = await client.list_tasks(a2a.ListTasksRequest(include_artifacts=True))
        await client.cancel_task(a2a.CancelTaskRequest(id=working.id))
        await system.follow(working.id)
        cancelled = await client.list_tasks(a2a.ListTasksRequest(status=a2a.TASK_STATE_CANCELED))
    held.set()
    assert {task.id for task in whole.tasks} == {one.id for one in (*expected.values(), working)}
    [answered] = [task for task in whole.tasks if task.id == sent.id]
    assert answered.artifacts == sent.artifacts
    assert [task.id for task in cancelled.tasks] == [working.id]


@pytest.mark.parametrize(
    "fields", [{"page_size": 101}, {"page_size": -1}, {"history_length": -1}, {"page_token": "?"}]
)
async def test_list_of_tasks_with_wrong_sizes_is_refused(
    system: System, idle_agent: agent_pb.Agent, fields: dict[str, Any]
) -> None:
    async with client_of(system, idle_agent) as client:
        with pytest.raises(InvalidParamsError):
            await client.list_tasks(a2a.ListTasksRequest(**fields))


async def test_list_of_tasks_in_an_unknown_state_is_refused(
    http: httpx2.AsyncClient, idle_agent: agent_pb.Agent
) -> None:
    response = await http.post(
        f"/a2a/{idle_agent.id}",
        json={"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {"status": "completed"}},
    )
    error = response.json()["error"]
    assert error["code"] == -32602
    assert "TASK_STATE_COMPLETED" in error["message"]


async def test_field_under_both_of_its_names_is_refused(
    http: httpx2.AsyncClient, idle_agent: agent_pb.Agent
) -> None:
    params = {"pageSize": 1, "page_size": 2}
    response = await http.post(
        f"/a2a/{idle_agent.id}",
        json={"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": params},
    )
    error = response.json()["error"]
    assert error["code"] == -32602
    assert "the field pageSize is repeated" in error["message"]


async def test_a_client_returns_the_result_of_its_tool(system: System) -> None:
    await system.tools.UpsertTool(
        tool_api.UpsertToolRequest(
            type=tool_pb2.TOOL_TYPE_CLIENT,
            name="look_outside",
            description="Looks out of the window.",
            parameters_json=json.dumps({"type": "object", "properties": {}}),
        )
    )
    agent = await system.make_agent(tools=["look_outside"])
    system.model.script(call("look_outside", {}), say("It rains."))
    async with client_of(system, agent, streaming=False) as client:
        task = await task_of(client, message("How is the weather?"))
        ended = await task_of(client, answer(task, clientReturn="rain"))
    assert text_of_artifacts(ended) == "It rains."


async def test_a_repeated_message_starts_no_second_task(system: System) -> None:
    system.model.script(say("Once."), say("Twice."))
    agent = await system.make_agent()
    request = message("Hello.")
    async with client_of(system, agent, streaming=False) as client:
        first, second = await task_of(client, request), await task_of(client, request)
        # As a week later: the answers to other requests of the agent loop are no longer stored.
        connection = await asyncpg.connect(system.urls["agent_loop"].admin_url)
        try:
            await connection.execute("DELETE FROM agent_loop.requests")
        finally:
            await connection.close()
        assert await task_of(client, request) == first
        with pytest.raises(InvalidParamsError):
            await task_of(client, message("Other.", message_id=request.message.message_id))
    assert first == second


async def test_a_task_is_returned_immediately_on_request(system: System) -> None:
    release = asyncio.Event()
    system.model.script(Reply(text="A long reply of many pieces.", piece=2, held=release))
    agent = await system.make_agent()
    request = message("Hello.")
    request.configuration.return_immediately = True
    async with client_of(system, agent, streaming=False) as client:
        task = await task_of(client, request)
        assert task.status.state in (a2a.TASK_STATE_SUBMITTED, a2a.TASK_STATE_WORKING)
        release.set()
        await system.follow(task.id)
        ended = await client.get_task(a2a.GetTaskRequest(id=task.id))
    assert text_of_artifacts(ended) == "A long reply of many pieces."


async def test_images_and_data_reach_the_model(system: System) -> None:
    system.model.script(say("A small picture."))
    agent = await system.make_agent()
    data = a2a.Part()
    json_format.ParseDict({"city": "Graz"}, data.data)
    async with client_of(system, agent, streaming=False) as client:
        image = a2a.Part(raw=png(4, 4), media_type="image/png")
        task = await task_of(client, message("What is this?", data, image))
    log = await system.log(agent, task.context_id)
    [stored] = [one for one in log if one.role == message_pb2.ROLE_USER]
    assert [part.WhichOneof("content") for part in stored.parts] == ["text", "text", "image"]
    assert json.loads(stored.parts[1].text.text) == {"city": "Graz"}


@pytest.mark.parametrize("version", VERSIONS)
async def test_failed_run_is_a_failed_task(system: System, version: str) -> None:
    system.model.script(Fault(400, "no such thing", type="invalid_request_error"))
    agent = await system.make_agent()
    async with client_of(system, agent, version=version, streaming=False) as client:
        task = await task_of(client, message("Hello."))
    assert task.status.state == a2a.TASK_STATE_FAILED
    assert "no such thing" in task.status.message.parts[0].text


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (message(), InvalidParamsError),
        (message("x", role=a2a.ROLE_AGENT), InvalidParamsError),
        (message("x", context_id="a\nb"), InvalidParamsError),
        (message("x", context_id=new_id("conversation")), InvalidParamsError),
        (message("x", task_id="mine"), TaskNotFoundError),
        (message("x", task_id=new_id("run")), TaskNotFoundError),
        (
            message("x", a2a.Part(raw=b"%PDF", media_type="application/pdf")),
            ContentTypeNotSupportedError,
        ),
        (message("x", a2a.Part(url="https://x.example/a.mp3")), ContentTypeNotSupportedError),
    ],
)
async def test_parts_without_an_equivalent_are_refused(
    system: System,
    idle_agent: agent_pb.Agent,
    version: str,
    request_: a2a.SendMessageRequest,
    error: type[A2AError],
) -> None:
    streaming = version == "0.3"
    async with client_of(system, idle_agent, version=version, streaming=streaming) as client:
        with pytest.raises(error):
            await events_of(client, request_)


async def test_message_for_a_task_that_has_ended_is_refused(system: System) -> None:
    system.model.script(say("Done."))
    agent = await system.make_agent()
    async with client_of(system, agent, streaming=False) as client:
        task = await task_of(client, message("Hello."))
        with pytest.raises(UnsupportedOperationError, match="has ended"):
            await task_of(client, message("More.", task_id=task.id))
        with pytest.raises(InvalidParamsError, match="contextId"):
            await task_of(
                client,
                message("x", task_id=task.id, context_id=agent.default_conversation_id),
            )


async def test_other_methods_of_the_protocol_are_refused_clearly(system: System) -> None:
    agent = await system.make_agent()
    push = message("x")
    push.configuration.task_push_notification_config.url = "https://x.example"
    json_only = message("x")
    json_only.configuration.accepted_output_modes.append("application/json")
    async with client_of(system, agent, streaming=False) as client:
        with pytest.raises(PushNotificationNotSupportedError):
            await client.create_task_push_notification_config(
                a2a.TaskPushNotificationConfig(task_id="t", url="https://x.example")
            )
        with pytest.raises(PushNotificationNotSupportedError):
            await task_of(client, push)
        with pytest.raises(ContentTypeNotSupportedError):
            await task_of(client, json_only)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", -32700),
        (b"{", -32700),
        (b"[" * 100_000, -32700),
        (b'"\\ud800"', -32700),
        (b"[]", -32600),
        (b"7", -32600),
        (b"{}", -32600),
        (b'{"jsonrpc": "1.0", "method": "GetTask"}', -32600),
        (b'{"jsonrpc": "2.0", "method": "message/sing"}', -32601),
        *(
            (
                b'{"jsonrpc": "2.0", "id": %s, "method": "GetTask", "params": {"id": "x"}}' % sent,
                -32600,
            )
            for sent in (b"{}", b"[1]", b"true", b"false", b"1.5")
        ),
        (b'{"jsonrpc": "2.0", "method": "GetTask", "params": []}', -32602),
        (b'{"jsonrpc": "2.0", "method": "GetTask", "params": {"id": {}}}', -32602),
        (b'{"jsonrpc": "2.0", "method": "tasks/get", "params": {}}', -32602),
        (b'{"jsonrpc": "2.0", "method": "tasks/get", "params": {"id": ""}}', -32001),
        *(
            (
                b'{"jsonrpc": "2.0", "method": "%s", "params": {"id": "x", "historyLength": -1}}'
                % name,
                -32602,
            )
            for name in (b"GetTask", b"tasks/get")
        ),
        *(
            (
                b'{"jsonrpc": "2.0", "method": "%s", "params": {"message": {"messageId": "m", '
                b'"role": "%s", "parts": [{"text": "Hi.", "kind": "text"}]}, "configuration": '
                b'{"historyLength": -1}}}' % (name, role),
                -32602,
            )
            for name, role in ((b"SendMessage", b"ROLE_USER"), (b"message/send", b"user"))
        ),
        (
            b'{"jsonrpc": "2.0", "method": "SendMessage", "params": {"message": {"metadata": '
            + b'{"a":' * 150
            + b"1"
            + b"}" * 150
            + b"}}}",
            -32700,
        ),
        # Numbers that parsers round to infinity, also where an enumeration is expected; and an
        # object of which parsers choose one or the other value.
        (b'{"jsonrpc": "2.0", "method": "GetTask", "params": {"id": "x", "n": 1e309}}', -32700),
        (
            b'{"jsonrpc": "2.0", "method": "SendMessage", "params": {"message": {"role": 1e309}}}',
            -32700,
        ),
        (b'{"jsonrpc": "2.0", "method": "GetTask", "params": {"id": "x", "id": "y"}}', -32700),
    ],
)
async def test_bad_body_is_refused(
    http: httpx2.AsyncClient, idle_agent: agent_pb.Agent, body: bytes, code: int
) -> None:
    response = await http.post(f"/a2a/{idle_agent.id}", content=body)
    assert response.status_code == 200
    assert response.json()["error"]["code"] == code


async def test_version_that_is_not_served_is_refused(
    system: System, http: httpx2.AsyncClient
) -> None:
    agent = await system.make_agent()
    request = {"jsonrpc": "2.0", "id": 7, "method": "GetTask", "params": {"id": "x"}}
    for version, code in (("2.0", -32009), ("0.2", -32009), ("1.0", -32001), ("1.1", -32001)):
        response = await http.post(
            f"/a2a/{agent.id}", json=request, headers={"a2a-version": version}
        )
        assert (response.json()["id"], response.json()["error"]["code"]) == (7, code)


async def test_body_that_is_too_large_is_refused(system: System, http: httpx2.AsyncClient) -> None:
    agent = await system.make_agent()
    response = await http.post(f"/a2a/{agent.id}", content=b" " * 5_000_000)
    assert response.status_code == 413


async def test_the_agent_card_has_the_fields_of_both_versions(
    system: System, http: httpx2.AsyncClient
) -> None:
    agent = await system.make_agent(description="Knows Graz.", tags=["city"])
    response = await http.get(f"/a2a/{agent.id}/.well-known/agent-card.json")
    card = response.json()
    assert card["description"] == "Knows Graz."
    assert [one["protocolVersion"] for one in card["supportedInterfaces"]] == ["1.0", "0.3"]
    assert (
        card["url"] == card["supportedInterfaces"][0]["url"] == f"{system.http_url}/a2a/{agent.id}"
    )
    assert (card["protocolVersion"], card["preferredTransport"]) == ("0.3", "JSONRPC")
    assert card["skills"][0]["tags"] == ["city"]
    assert card["securitySchemes"]["apiKey"]["type"] == "http"


async def test_nothing_is_shown_without_a_valid_key(system: System, other_project_key: str) -> None:
    agent = await system.make_agent()
    system.model.script(say("Private."))
    async with client_of(system, agent, streaming=False) as client:
        task = await task_of(client, message("Hello."))
    request = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": task.id}}
    path = f"/a2a/{agent.id}"
    async with httpx2.AsyncClient(base_url=system.http_url) as http:
        for key, status in (("", 401), ("wrong", 401), (other_project_key, 404)):
            headers = {"authorization": f"Bearer {key}"} if key else {}
            card = await http.get(f"{path}/.well-known/agent-card.json", headers=headers)
            response = await http.post(path, json=request, headers=headers)
            assert (card.status_code, response.status_code) == (status, status)
            assert card.headers.get("www-authenticate") == ("Bearer" if status == 401 else None)
            assert agent.name not in card.text
    other = await system.make_agent()
    async with client_of(system, other, streaming=False) as client:
        with pytest.raises(TaskNotFoundError):
            await client.get_task(a2a.GetTaskRequest(id=task.id))


async def test_a_key_without_the_scope_cannot_send_messages(system: System) -> None:
    agent = await system.make_agent()
    reader = await system.admin.CreateApiKey(
        admin_pb.CreateApiKeyRequest(name="reader", scopes=[Scope.READ])
    )
    async with client_of(system, agent, key=reader.secret, streaming=False) as client:
        from a2a.client.errors import A2AClientError  # noqa: PLC0415 - see client_of

        with pytest.raises(A2AClientError, match="403"):
            await task_of(client, message("Hello.", context_id=agent.default_conversation_id))

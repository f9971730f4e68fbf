"""The client without an event loop, with a complete Strata."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from doubles.script import Call, Reply, say
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.common.v1 import tool_pb2
from strata.api.core_memory.v1 import file_service_pb2 as file_pb
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.client import NotFoundError, SyncClient, connect_sync, new_request_id, returned
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

ResultT = TypeVar("ResultT")


async def in_program(system: System, work: Callable[[SyncClient], ResultT]) -> ResultT:
    """Runs work in a thread, like a program without an event loop."""

    def program() -> ResultT:
        with connect_sync(system.address, api_key=system.key) as client:
            return work(client)

    return await asyncio.to_thread(program)


async def new_agent(system: System, name: str, *tools: str) -> str:
    def create(client: SyncClient) -> str:
        request = agent_pb.CreateAgentRequest(name=name, tools=tools)
        return client.call(client.agents.CreateAgent, request).agent.id

    return await in_program(system, create)


async def test_calls_return_responses_and_raise_errors(system: System) -> None:
    def work(client: SyncClient) -> None:
        with pytest.raises(NotFoundError):
            client.call(client.agents.GetAgent, agent_pb.GetAgentRequest(name="nobody"))

    await in_program(system, work)


async def test_events_of_a_run_are_iterated(system: System) -> None:
    agent_id = await new_agent(system, "sync-talker")
    system.model.script(say("Good morning."))

    def work(client: SyncClient) -> list[str]:
        return [str(event.WhichOneof("event")) for event in client.send(agent_id, "Hello.")]

    kinds = await in_program(system, work)
    assert "text_delta" in kinds
    assert kinds[-1] == "run_finished"


async def test_ending_the_iteration_early_does_not_cancel_the_run(system: System) -> None:
    agent_id = await new_agent(system, "sync-leaver")
    system.model.script(say("Good morning."))

    def work(client: SyncClient) -> str:
        for event in client.send(agent_id, "Hello."):
            return event.run_id
        raise AssertionError

    run_id = await in_program(system, work)

    def follow(client: SyncClient) -> list[str]:
        request = run_pb.StreamRunRequest(run_id=run_id)
        responses = client.stream(client.runs.StreamRun, request)
        return [str(response.event.WhichOneof("event")) for response in responses]

    assert (await in_program(system, follow))[-1] == "run_finished"


async def test_functions_of_the_program_answer_tool_calls(system: System) -> None:
    def double(number: int) -> int:
        """Doubles a number.

        Args:
            number: The number.
        """
        return 2 * number

    def work(client: SyncClient) -> str:
        assert returned(client.run_tool(double, {"number": 4})) == "8"
        tool = client.upsert_tool(double, by_client=True, effect="read-only")
        assert tool.type == tool_pb2.TOOL_TYPE_CLIENT
        request = agent_pb.CreateAgentRequest(name="sync-doubler", tools=[tool.name])
        agent = client.call(client.agents.CreateAgent, request).agent
        text = ""
        for event in client.send(agent.id, "Double 21.", tools=[double]):
            if event.HasField("text_delta"):
                text += event.text_delta.text
        return text

    system.model.script(Reply(calls=(Call("double", {"number": 21}),)), say("It is 42."))
    assert await in_program(system, work) == "It is 42."


async def test_requests_are_uploaded(system: System) -> None:
    def work(client: SyncClient) -> file_pb.File:
        folder = client.call(
            client.files.CreateFolder,
            file_pb.CreateFolderRequest(request_id=new_request_id(), name="sync-manuals"),
        ).folder
        header = file_pb.UploadFileHeader(
            request_id=new_request_id(), folder_id=folder.id, name="manual.txt"
        )
        requests = [
            file_pb.UploadFileRequest(header=header),
            file_pb.UploadFileRequest(chunk=b"Turn it on."),
        ]
        return client.upload(client.files.UploadFile, requests).file

    assert (await in_program(system, work)).name == "manual.txt"


async def test_passages_are_uploaded_while_they_are_listed_by_the_same_client(
    system: System,
) -> None:
    source = await new_agent(system, "sync-source")
    target = await new_agent(system, "sync-target")
    callers: set[threading.Thread] = set()

    def work(client: SyncClient) -> tuple[int, set[str]]:
        client.passages.insert("Trains leave at nine.", agent_id=source)

        def copied() -> Iterator[str]:
            for passage in client.passages.list(agent_id=source):
                callers.add(threading.current_thread())
                yield passage.text

        response = client.passages.upload(copied(), agent_id=target)
        assert callers == {threading.current_thread()}
        return response.inserted_count, {one.text for one in client.passages.list(agent_id=target)}

    assert await in_program(system, work) == (1, {"Trains leave at nine."})


async def test_uploaded_requests_may_use_the_client_and_their_error_is_raised(
    system: System,
) -> None:
    def work(client: SyncClient) -> None:
        def requests() -> Iterator[file_pb.UploadFileRequest]:
            folder = client.files.create_folder(name="sync-unread")
            header = file_pb.UploadFileHeader(
                request_id=new_request_id(), folder_id=folder.id, name="manual.txt"
            )
            yield file_pb.UploadFileRequest(header=header)
            raise OSError("The disk is gone.")

        with pytest.raises(OSError, match="The disk is gone"):
            client.upload(client.files.UploadFile, requests())

    await in_program(system, work)

"""256 idle uploads of one key leave streams for another key, at each service on the path."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from integration.gateway.projects import project, project_key
from integration.gateway.scripted_services import Gateway, ScriptedServices
from run_events import collect, kinds
from strata.api.archival.v1 import passage_service_pb2 as passages
from strata.api.archival.v1 import passage_service_pb2_grpc as passages_grpc


def upload(gateway: Gateway) -> Any:
    stub = passages_grpc.PassageServiceStub(gateway.channel)
    return stub.UploadPassages(metadata=gateway.metadata, timeout=60)


async def test_idle_uploads_of_one_key_leave_streams_for_another(
    socket_services: ScriptedServices,
) -> None:
    # Another setting limits calls per second, which is not tested here.
    gateway = await socket_services.gateway(call_burst=1000, calls_per_second=1000)
    made = [await project(gateway, name) for name in ("idle", "busy")]
    scopes = ("run", "read", "write")
    idle, busy = [await project_key(gateway, project.id, *scopes) for project in made]
    calls = [upload(idle) for _ in range(256)]
    for call in calls:
        await call.write(passages.UploadPassagesRequest(archive_id="archive-1"))
    # Those over three quarters are refused; the others wait for their next message.
    refused = 0
    while refused < 64:
        done, _ = await asyncio.wait(
            [asyncio.ensure_future(call.code()) for call in calls if not call.done()],
            return_when=asyncio.FIRST_COMPLETED,
        )
        assert {call.result() for call in done} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        refused = sum(call.done() for call in calls)
    assert refused == 64
    theirs = upload(busy)
    await theirs.write(passages.UploadPassagesRequest(archive_id="archive-2"))
    await theirs.done_writing()
    assert [progress.received_count async for progress in theirs] == [1]
    events = await collect(busy.send(socket_services.new_agent()))
    assert kinds(events)[-1] == "run_finished"
    for call in calls:
        call.cancel()

"""Events of runs are kept no longer than the project keeps its messages."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from doubles.script import say
from sql_queries import execute
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.gateway.project_callers import ProjectCallers
from strata.gateway.retention.messages import MessageRetention
from strata.gateway.retention.store import PostgresRetention
from strata.gateway.retention.worker import RetentionTerms, RetentionWorker
from strata.protocol.errors import NotFoundError, Reason
from strata.shared.auth import TokenSigner
from strata.shared.channels import ChannelFactory, ServiceChannels
from strata.shared.db import Database
from whole_system import Shape, System

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def delete_old(system: System) -> None:
    """Runs the retention worker of the gateway once."""
    settings = system.gateway_settings
    async with AsyncExitStack() as stack:
        factory = ChannelFactory()
        stack.push_async_callback(factory.close)
        database = Database(settings.database_url, pool_size=1)
        stack.push_async_callback(database.close)
        worker = Database(settings.worker_database_url, pool_size=1)
        stack.push_async_callback(worker.close)
        recall = ServiceChannels(settings.targets, factory).channel("recall")
        messages = MessageRetention(
            recall, ProjectCallers(TokenSigner(settings.private_key()), database)
        )
        store = PostgresRetention(database, worker)
        terms = RetentionTerms(event_days=0)
        await RetentionWorker(store, messages.days, terms).delete_old()


async def make_older(system: System, run_id: str, days: int) -> None:
    await execute(
        system.urls["gateway"].admin_url,
        "UPDATE gateway.runs SET finish_time = finish_time - $2 * interval '1 day' WHERE id = $1",
        run_id,
        days,
    )


async def test_events_are_deleted_with_the_retention_of_the_messages(
    system: System,
) -> None:
    if system.shape is Shape.IN_PROCESS:
        pytest.skip("recall is called at its address")
    agent = await system.make_agent()
    system.model.script(say("Hello."), say("Hello again."))
    old_id, recent_id = [(await system.send(agent, "Hello.")).run_id for _ in range(2)]
    await make_older(system, old_id, 8)
    await delete_old(system)
    explained = await system.runs.ExplainRun(run_pb.ExplainRunRequest(run_id=old_id))
    assert explained.spans
    await system.messages.SetRetention(message_pb.SetRetentionRequest(days=7))
    try:
        await delete_old(system)
    finally:
        await system.messages.SetRetention(message_pb.SetRetentionRequest(days=0))
    with pytest.raises(NotFoundError) as error:
        await system.runs.ExplainRun(run_pb.ExplainRunRequest(run_id=old_id))
    assert error.value.reason is Reason.RUN_EVENTS_DELETED
    await system.runs.ExplainRun(run_pb.ExplainRunRequest(run_id=recent_id))
    run = (await system.runs.GetRun(run_pb.GetRunRequest(run_id=old_id))).run
    assert run.state == run_pb.RUN_STATE_COMPLETED

"""A reranker that the settings name, through the service."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from callers import TokenKeys
from chat_messages import text_part
from cross_encoders import export
from strata.api.common.v1 import message_pb2 as common
from strata.api.common.v1 import search_pb2
from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.api.recall.v1 import message_service_pb2_grpc as message_grpc
from strata.api.recall.v1 import window_service_pb2 as window_pb
from strata.api.recall.v1 import window_service_pb2_grpc as window_grpc
from strata.protocol.errors import FailedPreconditionError, Reason
from strata.recall.main import build
from strata.recall.migrations import MIGRATIONS
from strata.recall.settings import RecallSettings
from strata.shared.context import use
from strata.shared.ids import new_id
from strata.shared.inprocess import InProcessNetwork

PLAIN = "The boat is called Nora."
# It has most words of the question, and little of its meaning.
WORDY = "It is the end of the day, the end of the week, the end of the month."
QUESTION = "Is the name of the boat Nora at the end?"


def message_of(text: str, role: common.Role.ValueType = common.ROLE_USER) -> common.Message:
    message = common.Message(id=new_id("message"), role=role, parts=[text_part(text)])
    message.create_time.GetCurrentTime()
    return message


async def test_reranker_of_the_settings_orders_the_results(
    databases: Any, keys: TokenKeys, tmp_path: Path
) -> None:
    urls = await databases.of(MIGRATIONS)
    caller = keys.context(new_id("project"))
    folder = export(tmp_path / "counter", [QUESTION, PLAIN, WORDY])
    agent = new_id("agent")
    # Full-text search only: the reranker needs no index.
    settings = RecallSettings(
        database_url=urls.service_url,
        token_public_keys=keys.public,
        index_messages=False,
        reranker_budget_ms=60_000,
    )
    for path, first in ((None, PLAIN), (folder, WORDY)):
        async with AsyncExitStack() as stack:
            network = InProcessNetwork(keys.verifier)
            stack.push_async_callback(network.close)
            chosen = settings.model_copy(update={"reranker_path": path})
            network.register(await build(chosen, network, stack), chosen)
            stack.enter_context(use(caller))
            messages = message_grpc.MessageServiceStub(network.channel("recall"))
            windows = window_grpc.WindowServiceStub(network.channel("recall"))
            if path is None:
                begun = [message_of("", common.ROLE_SYSTEM), message_of(PLAIN), message_of(WORDY)]
                opening = window_pb.OpenWindowRequest(
                    conversation_id=new_id("conversation"), agent_id=agent, messages=begun
                )
                await windows.OpenWindow(opening)
            request = message_pb.SearchMessagesRequest(agent_id=agent, query=QUESTION)
            response = await messages.SearchMessages(request)
            assert response.hits[0].message.parts[0].text.text == first
            assert response.HasField("reranking") == (path is not None)
            if path is not None:
                assert response.reranking.outcome == search_pb2.RERANK_OUTCOME_DONE
                assert response.hits[0].relevance.rerank_rank == 1
            request.mode = message_pb.SEARCH_MODE_FULL_TEXT
            assert not (await messages.SearchMessages(request)).HasField("reranking")


async def test_service_does_not_start_if_its_reranker_is_missing(
    databases: Any, keys: TokenKeys, tmp_path: Path
) -> None:
    urls = await databases.of(MIGRATIONS)
    wrong = RecallSettings(
        database_url=urls.service_url,
        token_public_keys=keys.public,
        index_messages=False,
        reranker_path=tmp_path / "nowhere",
    )
    async with AsyncExitStack() as stack:
        network = InProcessNetwork(keys.verifier)
        stack.push_async_callback(network.close)
        with pytest.raises(FailedPreconditionError, match="nowhere") as caught:
            await build(wrong, network, stack)
    assert caught.value.reason is Reason.MODEL_NOT_CONFIGURED

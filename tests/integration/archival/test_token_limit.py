"""The token limit applies to every RPC that stores a text, for any text."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from integration.archival.archival_calls import count, index, made, upload
from integration.archival.conftest import Client
from strata.api.archival.v1 import passage_service_pb2 as pb
from strata.protocol.errors import FailedPreconditionError, Reason
from strata.shared.ids import new_id

pytestmark = pytest.mark.asyncio(loop_scope="session")

# Each text is below the limit of bytes; the embedding model counts one token or a few thousand.
TEXTS = ("x" * 30_000, "\U0001f389" * 8_000, "\u30e2" * 9_000, "\u65e5\u672c" * 4_200)


@pytest.mark.parametrize("text", TEXTS, ids=["letters", "emoji", "kana", "Han"])
async def test_no_method_stores_a_text_over_the_limit(client: Client, text: str) -> None:
    archive = await made(client)
    stored = await client.passages.InsertPassage(
        pb.InsertPassageRequest(archive_id=archive, passage=pb.NewPassage(text="A fact."))
    )
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: client.passages.InsertPassage(
            pb.InsertPassageRequest(archive_id=archive, passage=pb.NewPassage(text=text))
        ),
        lambda: client.passages.UpdatePassage(
            pb.UpdatePassageRequest(passage_id=stored.passage.id, text=text)
        ),
        lambda: upload(client, archive, [text]),
        lambda: index(client, new_id("folder"), new_id("file"), text),
    ]
    for call in calls:
        with pytest.raises(FailedPreconditionError) as caught:
            await call()
        assert caught.value.reason is Reason.TOKEN_LIMIT_EXCEEDED
        assert "8192" in caught.value.message
    assert await count(client, archive) == 1

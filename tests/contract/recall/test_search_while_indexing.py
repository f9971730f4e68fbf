"""Searches during indexing: the snapshot includes what the index does not have yet."""

from __future__ import annotations

from typing import Any

from callers import as_project
from recall_conversations import START
from strata.recall.domain.messages import Message
from strata.recall.domain.search import SearchQuery
from strata.recall.store import PendingMessages, PostgresSearchStore, PostgresWindowStore
from strata.shared import context
from strata.shared.db import Database
from strata.shared.ids import new_id
from strata.shared.messages import MessageRole


async def test_a_message_indexed_after_the_snapshot_is_still_found_by_its_words(
    urls: Any, database: Database, worker: Database
) -> None:
    """The index may have been searched before it contained the message."""
    other = Database(urls.service_url)
    project, agent = new_id("project"), new_id("agent")
    message = Message(
        id=new_id("message"),
        role=MessageRole.USER,
        parts=({"type": "text", "text": "The boat is blue."},),
        create_time=START,
    )

    with context.use(as_project(project)):
        conversation = new_id("conversation")
        await PostgresWindowStore(database).open(conversation, agent, [message], "english")
        store, query = PostgresSearchStore(database), SearchQuery(agent, "boat", 5)
        async with store.open_snapshot(query, []) as snapshot:
            await PendingMessages(other, worker).done(project, [message.id])
            assert [match.id for match, _ in await snapshot.waiting()] == [message.id]
        async with store.open_snapshot(query, []) as snapshot:
            assert not await snapshot.waiting()
    await other.close()

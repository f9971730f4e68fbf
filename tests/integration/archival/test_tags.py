"""Every method returns tags sorted and without duplicates."""

from __future__ import annotations

import asyncio

import pytest

from integration.archival.conftest import Client
from passage_uploads import upload_passages
from strata.api.archival.v1 import agent_archive_service_pb2 as agent_pb
from strata.api.archival.v1 import archive_service_pb2 as archive_pb
from strata.api.archival.v1 import passage_service_pb2 as pb
from strata.api.common.v1 import message_pb2
from strata.protocol.errors import InvalidArgumentError
from strata.shared.ids import new_id

pytestmark = pytest.mark.asyncio(loop_scope="session")

GIVEN = ["zoo", "Äpfel", "apple", "10", "Zebra", "apple", "9", "été", "zoo", "東京", "🚲"]
EXPECTED = ["10", "9", "Zebra", "apple", "zoo", "Äpfel", "été", "東京", "🚲"]
TEXT = "The parrot is green."
INDEXED = pb.INDEX_STATE_INDEXED
WEB = message_pb2.PROVENANCE_WEB


async def stored(client: Client, agent: str, way: str) -> None:
    """Stores a passage by one of the two methods."""
    passage = pb.NewPassage(text=TEXT, tags=GIVEN)
    if way == "InsertPassage":
        request = pb.InsertPassageRequest(agent_id=agent, passage=passage)
        answer = await client.passages.InsertPassage(request)
        assert list(answer.passage.tags) == EXPECTED
        # The stored passage is returned, whatever the order of the tags in this request.
        passage.tags.reverse()
        again = await client.passages.InsertPassage(request)
        assert (again.duplicate, list(again.passage.tags)) == (True, EXPECTED)
        return

    responses = await upload_passages(client.passages, [passage], agent_id=agent)
    assert responses[-1].complete


@pytest.mark.parametrize("way", ["InsertPassage", "UploadPassages"])
async def test_tags_are_sorted_and_unique(client: Client, way: str) -> None:
    agent = new_id("agent")
    await client.agents.PrepareAgent(agent_pb.PrepareAgentRequest(agent_id=agent))
    await stored(client, agent, way)

    listing = pb.ListPassagesRequest(agent_id=agent)
    (listed,) = (await client.passages.ListPassages(listing)).passages
    assert list(listed.tags) == EXPECTED
    one = pb.GetPassageRequest(passage_id=listed.id)
    async with asyncio.timeout(30):
        while (got := (await client.passages.GetPassage(one)).passage).index_state != INDEXED:
            await asyncio.sleep(0.05)
    assert list(got.tags) == EXPECTED
    search = pb.SearchPassagesRequest(agent_id=agent, query="parrot", tags=["zoo"])
    (hit,) = (await client.passages.SearchPassages(search)).hits
    assert list(hit.passage.tags) == EXPECTED

    changed = pb.UpdatePassageRequest(
        passage_id=listed.id, set_tags=True, tags=[*reversed(GIVEN), "new"]
    )
    more = sorted([*EXPECTED, "new"])
    assert list((await client.passages.UpdatePassage(changed)).passage.tags) == more
    await client.passages.DeletePassage(pb.DeletePassageRequest(passage_id=listed.id))
    back = pb.RestorePassageRequest(passage_id=listed.id, revision=1)
    assert list((await client.passages.RestorePassage(back)).passage.tags) == EXPECTED
    history = pb.ListPassageVersionsRequest(passage_id=listed.id)
    versions = (await client.passages.ListPassageVersions(history)).versions
    assert [list(version.tags) for version in versions] == [EXPECTED, more, more, EXPECTED]


async def test_tags_of_many_passages_are_counted_in_one_order(client: Client) -> None:
    agent = new_id("agent")
    await client.agents.PrepareAgent(agent_pb.PrepareAgentRequest(agent_id=agent))
    shared = archive_pb.CreateArchiveRequest(name=new_id("x"), agent_id=agent)
    archive = (await client.archives.CreateArchive(shared)).archive.id
    # One tag for each passage, alternately in the agent's own archive and in the shared one.
    for number, tag in enumerate([*GIVEN, *reversed(GIVEN)]):
        place = {"archive_id": archive} if number % 2 else {"agent_id": agent}
        passage = pb.NewPassage(text=f"Fact number {number}.", tags=[tag])
        await client.passages.InsertPassage(pb.InsertPassageRequest(passage=passage, **place))

    tags = (await client.passages.ListTags(pb.ListTagsRequest(agent_id=agent))).tags
    counts = [(tag.tag, tag.count) for tag in tags]
    assert counts == [(tag, 2 * GIVEN.count(tag)) for tag in EXPECTED]
    tags = (await client.passages.ListTags(pb.ListTagsRequest(archive_id=archive))).tags
    assert [tag.tag for tag in tags] == [tag for tag in EXPECTED if tag in {*GIVEN}]
    stats = agent_pb.GetAgentStatsRequest(agent_id=agent)
    by_use = sorted(EXPECTED, key=lambda tag: (-GIVEN.count(tag), tag))
    assert list((await client.agents.GetAgentStats(stats)).tags) == by_use


async def test_tags_of_a_text_that_is_stored_again_are_added(client: Client) -> None:
    agent = new_id("agent")
    await client.agents.PrepareAgent(agent_pb.PrepareAgentRequest(agent_id=agent))

    async def insert(*tags: str) -> pb.InsertPassageResponse:
        passage = pb.NewPassage(text=TEXT, tags=tags, origin=pb.PassageOrigin(agent_id=agent))
        request = pb.InsertPassageRequest(agent_id=agent, passage=passage)
        return await client.passages.InsertPassage(request)

    first = await insert("bird", "green")
    again = await insert("pet", "bird")
    assert (again.duplicate, again.passage.id) == (True, first.passage.id)
    assert list(again.passage.tags) == ["bird", "green", "pet"]
    search = pb.SearchPassagesRequest(agent_id=agent, query="parrot", tags=["pet"])
    (hit,) = (await client.passages.SearchPassages(search)).hits
    assert hit.passage.id == first.passage.id
    tags = (await client.passages.ListTags(pb.ListTagsRequest(agent_id=agent))).tags
    assert [(tag.tag, tag.count) for tag in tags] == [("bird", 1), ("green", 1), ("pet", 1)]

    # Without new tags nothing changes.
    assert (await insert("green")).passage.revision == again.passage.revision == 2
    history = pb.ListPassageVersionsRequest(passage_id=first.passage.id)
    newest, oldest = (await client.passages.ListPassageVersions(history)).versions
    assert (list(newest.tags), list(oldest.tags)) == (["bird", "green", "pet"], ["bird", "green"])
    assert newest.origin.agent_id == agent

    with pytest.raises(InvalidArgumentError, match="must not be more than 64"):
        await insert(*(f"tag {number}" for number in range(62)))
    assert (await insert()).passage.revision == 2


async def test_tags_that_are_written_under_taint_label_the_passage(client: Client) -> None:
    agent = new_id("agent")
    await client.agents.PrepareAgent(agent_pb.PrepareAgentRequest(agent_id=agent))
    by_run = pb.PassageOrigin(agent_id=agent, run_id=new_id("run"))
    under_taint = pb.PassageOrigin(agent_id=agent, run_id=new_id("run"), taint=[WEB])

    async def insert(origin: pb.PassageOrigin, *tags: str) -> pb.Passage:
        passage = pb.NewPassage(text=TEXT, tags=tags, origin=origin)
        request = pb.InsertPassageRequest(agent_id=agent, passage=passage)
        return (await client.passages.InsertPassage(request)).passage

    async def update(passage: pb.Passage, origin: pb.PassageOrigin | None = None) -> pb.Passage:
        request = pb.UpdatePassageRequest(
            passage_id=passage.id, origin=origin, set_tags=True, tags=["pet"]
        )
        return (await client.passages.UpdatePassage(request)).passage

    # A text that is stored again without new tags changes nothing.
    assert not (await insert(by_run, "bird")).origin.taint
    assert not (await insert(under_taint, "bird")).origin.taint
    added = await insert(under_taint, "obey eve")
    assert (list(added.origin.taint), added.revision) == ([WEB], 2)
    history = pb.ListPassageVersionsRequest(passage_id=added.id)
    versions = (await client.passages.ListPassageVersions(history)).versions
    assert [list(version.origin.taint) for version in versions] == [[WEB], []]
    # A change of tags alone removes no label: the text may have been written under it.
    assert list((await update(added)).origin.taint) == [WEB]

    clean = pb.RestorePassageRequest(passage_id=added.id, revision=1)
    assert not (await client.passages.RestorePassage(clean)).passage.origin.taint
    assert list((await update(added, under_taint)).origin.taint) == [WEB]


HOSTILE = ["two\nlines", "end\r", "\u2028", "bell\a", "\u202eevil", "x" * 129, " ", "nul\0"]


@pytest.mark.parametrize("tag", HOSTILE)
@pytest.mark.parametrize("way", ["InsertPassage", "UploadPassages", "UpdatePassage"])
async def test_a_tag_that_is_not_one_short_line_is_refused(
    client: Client, way: str, tag: str
) -> None:
    agent = new_id("agent")
    await client.agents.PrepareAgent(agent_pb.PrepareAgentRequest(agent_id=agent))
    passage = pb.NewPassage(text=TEXT, tags=["good", tag])

    async def store() -> None:
        if way == "InsertPassage":
            request = pb.InsertPassageRequest(agent_id=agent, passage=passage)
            await client.passages.InsertPassage(request)
        elif way == "UploadPassages":
            await upload_passages(client.passages, [passage], agent_id=agent)
        else:
            made = pb.InsertPassageRequest(agent_id=agent, passage=pb.NewPassage(text=TEXT))
            stored = (await client.passages.InsertPassage(made)).passage
            change = pb.UpdatePassageRequest(passage_id=stored.id, set_tags=True, tags=passage.tags)
            await client.passages.UpdatePassage(change)

    with pytest.raises(InvalidArgumentError) as caught:
        await store()
    (violation,) = caught.value.violations
    assert violation.field.endswith("tags[1]")
    assert "1 to 128 characters" in violation.description
    stats = await client.agents.GetAgentStats(agent_pb.GetAgentStatsRequest(agent_id=agent))
    assert list(stats.tags) == []

"""Pins, summaries, forks, export and retention on the command line."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from command_line import Run
from doubles.script import say
from image_samples import png
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.protocol.images import image_id
from strata.shared.ids import new_id
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def talk(system: System, ann: agent_pb.Agent, strata: Run) -> AsyncIterator[Any]:
    """An agent with three messages of the user."""
    sentences = ("My passport number is X77-231.", "I am off to Porto in May.", "It rains again.")
    for text in sentences:
        system.model.script(say("Noted."))
        done = await strata("chat", ann.name, "--no-usage", "-m", text)
        assert done.code == 0, done
    yield ann


async def test_image_is_sent_listed_and_exported(
    strata: Run, system: System, ann: agent_pb.Agent, tmp_path: Path
) -> None:
    photo = tmp_path / "my photo.png"
    photo.write_bytes(png(6, 5))
    system.model.script(say("A grey field."), say("Grey."))
    sent = ("chat", ann.name, "--no-usage", "-m", "What is this?", "--image", str(photo))
    done = await strata(*sent)
    assert (done.code, done.out) == (0, "A grey field.\n"), done
    assert system.model.requests[-1].images == [("image/png", png(6, 5))]
    assert (await listed(strata, ann))[1][2] == "What is this? [image]"

    folder = tmp_path / "images"
    exported = await strata("recall", "export", ann.name, "--images", str(folder))
    messages = [json.loads(line) for line in exported.out.splitlines()]
    image = messages[-2]["parts"][1]["image"]
    assert (image["imageId"], image["width"], image["height"]) == (image_id(png(6, 5)), 6, 5)
    (file,) = folder.iterdir()
    assert (file.name, file.read_bytes()) == (f"{image['imageId']}.png", png(6, 5))

    notes = tmp_path / "notes.txt"
    notes.write_text("Hello.")
    refused = await strata("chat", ann.name, "-m", "Look.", "--image", str(notes))
    assert refused.code != 0
    assert "is not a PNG, JPEG, GIF or WebP file" in refused.err
    assert (await strata("chat", ann.name, "--image", str(photo))).code == 2
    blank = await strata("chat", ann.name, "-m", " \u200b")
    assert blank.code != 0
    assert "messages[0].parts must hold text that is not blank" in blank.err


def rows(out: str) -> list[list[str]]:
    return [line.split("\t") for line in out.splitlines()[1:]]


async def listed(strata: Run, agent: agent_pb.Agent, *options: str) -> list[list[str]]:
    done = await strata("recall", "list", agent.name, *options)
    assert done.code == 0, done
    return rows(done.out)


async def test_a_pinned_message_is_listed_and_survives_a_compaction(
    strata: Run, system: System, talk: agent_pb.Agent
) -> None:
    messages = await listed(strata, talk)
    passport = messages[1][3]
    done = await strata("recall", "pin", passport)
    assert done.out == "Pinned: My passport number is X77-231.\n"
    assert [row[3] for row in await listed(strata, talk, "--pinned")] == [passport]

    system.model.script(say("- A trip to Porto."))
    compacted = await strata(
        "agents", "compact", talk.name, "--mode", "all", "--prompt", "Sum up.", "--chars", "300"
    )
    assert compacted.code == 0, compacted
    assert compacted.out == "- A trip to Porto.\n"
    assert system.model.requests[-1].system == "Sum up."
    expanded = await strata("recall", "expand", talk.name, "-n", "3")
    assert [row[3] for row in rows(expanded.out)] == [
        *("Noted.", "I am off to Porto in May.", "Noted.")
    ]
    assert expanded.err == ""
    first = await strata("recall", "expand", talk.name, "-n", "1")
    assert "continue with --from 3" in first.err
    assert rows((await strata("recall", "expand", talk.name, "--from", "4")).out)[0][0] == "4"
    document = json.loads((await strata("recall", "expand", talk.name, "--json")).out)
    assert document["summary"]["parts"][0]["summary"]["text"] == "- A trip to Porto."

    undone = await strata("recall", "unpin", passport, "--json")
    assert json.loads(undone.out)["pinned"] is False
    assert await listed(strata, talk, "--pinned") == []
    wrong = await strata("recall", "pin", new_id("message"))
    assert (wrong.code, "MESSAGE_NOT_FOUND" in wrong.err) == (1, True)


async def test_without_a_summary_there_is_nothing_to_expand(
    strata: Run, talk: agent_pb.Agent
) -> None:
    done = await strata("recall", "expand", talk.name)
    assert (done.code, done.out) == (0, "")
    assert "There is no summary in the window." in done.err


async def test_search_results_have_the_reason_and_the_neighbours(
    strata: Run, system: System, talk: agent_pb.Agent
) -> None:
    done = await strata(
        "recall", "search", talk.name, "passport", "-n", "1", "-C", "1", "--explain"
    )
    header, *_ = done.out.splitlines()
    assert header == "WHEN\tWHO\tTEXT\tID\tWHY"
    hit, after = rows(done.out)
    assert hit[2] == "My passport number is X77-231."
    assert hit[4]
    assert (after[1], after[2], after[4]) == ("assistant", "| Noted.", "")
    request = agent_pb.CreateConversationRequest(agent_id=talk.id)
    other = (await system.agents.CreateConversation(request)).conversation
    elsewhere = await strata(
        *("recall", "search", talk.name, "passport", "--explain"), *("--conversation", other.id)
    )
    assert rows(elsewhere.out) == []
    assert "conversation_id excludes" in elsewhere.err


async def test_a_fork_continues_from_a_message(
    strata: Run, system: System, talk: agent_pb.Agent
) -> None:
    messages = await listed(strata, talk)
    made = await strata("agents", "fork", talk.name, "--at", messages[2][3], "--title", "again")
    assert made.code == 0, made
    fields = dict(line.split(": ", 1) for line in made.out.splitlines())
    assert fields["forked from"] == talk.default_conversation_id
    copied = await listed(strata, talk, "--conversation", fields["conversation"])
    assert [row[2] for row in copied[1:]] == ["My passport number is X77-231.", "Noted."]

    system.model.script(say("It is X77-231."))
    done = await strata(
        *("chat", talk.name, "--no-usage", "--fork", messages[4][3], "-m", "What was it?")
    )
    assert (done.code, done.out) == (0, "It is X77-231.\n")
    contents = [m["content"] for m in system.model.requests[-1].body["messages"][1:]]
    assert [str(content) for content in contents][-2:] == ["Noted.", "What was it?"]
    assert "I am off to Porto in May." in contents
    assert "It rains again." not in contents
    conversations = rows((await strata("agents", "conversations", talk.name)).out)
    assert [row[1] for row in conversations] == ["", "again", ""]
    third = conversations[2][0]
    assert third in done.err
    # A fork of the fork, at one of the fork's messages.
    there = await listed(strata, talk, "--conversation", third)
    again = await strata("agents", "fork", talk.name, "--at", there[-1][3], "--json")
    assert json.loads(again.out)["forkedFromId"] == third
    stranger = await system.make_agent()
    wrong = await strata("agents", "fork", stranger.name, "--at", messages[2][3])
    assert (wrong.code, "another agent" in wrong.err) == (2, True)
    named = await system.agents.CreateConversation(
        agent_pb.CreateConversationRequest(agent_id=stranger.id, external_id="crm/4711")
    )
    ours = ("agents", "conversations", stranger.name, "--external-id")
    [row] = rows((await strata(*ours, "crm/4711")).out)
    assert (row[0], row[-1]) == (named.conversation.id, "crm/4711")
    assert "CONVERSATION_NOT_FOUND" in (await strata(*ours, "crm/1")).err


async def test_an_export_is_one_document_a_line(strata: Run, talk: agent_pb.Agent) -> None:
    done = await strata("recall", "export", talk.name)
    documents = [json.loads(line) for line in done.out.splitlines()]
    assert [int(document.get("sequence", 0)) for document in documents] == list(range(7))
    assert documents[1]["parts"][0]["text"]["text"] == "My passport number is X77-231."
    assert "7 messages." in done.err
    one = await strata(
        "recall", "export", talk.name, "--conversation", talk.default_conversation_id
    )
    assert one.out == done.out


async def test_an_export_sends_nothing_to_the_terminal(
    system: System, ann: agent_pb.Agent, strata: Run
) -> None:
    text = "red \x1b[31m\x9b31m \u202egreen\u2028\u2029\x85 end"
    system.model.script(say("Noted."))
    assert (await strata("chat", ann.name, "--no-usage", "-m", text)).code == 0
    done = await strata("recall", "export", ann.name)
    sent = [json.loads(line) for line in done.out.splitlines()]
    assert text in [message["parts"][0]["text"]["text"] for message in sent[1:]]
    assert all(character.isprintable() for character in done.out.replace("\n", ""))


async def test_setting_the_retention_needs_confirmation(strata: Run) -> None:
    assert (await strata("recall", "retention")).out == "messages are kept: for ever\n"
    refused = await strata("recall", "retention", "--days", "30")
    assert (refused.code, "Give --yes." in refused.err) == (2, True)
    done = await strata("recall", "retention", "--days", "3000", "--yes")
    assert done.out.splitlines()[0] == "messages are kept: for 3000 days"
    assert json.loads((await strata("recall", "retention", "--json")).out)["days"] == 3000
    assert (await strata("recall", "retention", "--days", "0")).code == 0
    assert (await strata("recall", "retention")).out.startswith("messages are kept: for ever\n")


async def test_how_a_window_is_compacted_is_set_and_shown(strata: Run, tmp_path: Path) -> None:
    name = f"settings {new_id('x')[-8:]}"
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Short.")
    made = await strata(
        *("agents", "create", name, "--compaction-mode", "all", "--summary-chars", "900"),
        *("--compaction-prompt-file", str(prompt), "--json"),
    )
    assert made.code == 0, made
    settings = json.loads(made.out)["compaction"]
    assert (settings["mode"], settings["clipChars"], settings["prompt"]) == ("all", 900, "Short.")
    changed = await strata(
        *("agents", "update", name, "--compaction-share", "0.5", "--compaction-mode", ""),
        *("--compaction-acknowledge", "--compaction-temperature", "0.2"),
    )
    assert (
        "compaction: share 0.5, characters 900, prompt its own, acknowledgement on, temperature 0.2"
        in changed.out
    )
    for wrong in (
        ("--compaction-mode", "some"),
        ("--compaction-prompt", "a", "--compaction-prompt-file", str(prompt)),
    ):
        done = await strata("agents", "update", name, *wrong)
        assert done.code == 2, done

"""The chat: live runs, tool calls, edits of memory, approvals, conversations, forks."""

from __future__ import annotations

import asyncio
import html
import re
from typing import Any

import pytest
from markupsafe import escape

from chat_messages import text_of
from console_client import HOSTILE, ConsoleClient, shown
from doubles.script import Call, Reply, call, say
from image_samples import encoded, padded, png
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.common.v1 import message_pb2
from strata.api.common.v1.tool_pb2 import TOOL_RULE_TYPE_REQUIRES_APPROVAL, ToolRule
from strata.api.core_memory.v1.block_service_pb2 import NewBlock
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.gateway.console.views import chat
from strata.protocol.images import MAX_IMAGE_BYTES
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

HTMX = {"hx-request": "true"}
APPROVED = [ToolRule(type=TOOL_RULE_TYPE_REQUIRES_APPROVAL, tool_name="conversation_search")]


async def sent(ann: ConsoleClient, agent: agent_pb.Agent, text: str = "Hello.") -> str:
    """Sends a message in the console; returns the id of the run."""
    response = await ann.post(f"/agents/{agent.id}/messages", {"text": text}, headers=HTMX)
    assert response.status_code == 200, response.text
    match = re.search(r'data-events="/console/live/([^"]+)"', response.text)
    assert match is not None, response.text
    return match.group(1)


def html_of(operations: list[dict[str, Any]]) -> str:
    return "".join(operation.get("html", "") for operation in operations)


async def test_run_streams_reasoning_text_and_calls(system: System, ann: ConsoleClient) -> None:
    agent = await system.make_agent(blocks=[NewBlock(label="human", value="Likes tea.")])
    edit = {"label": "human", "old_str": "Likes tea.", "new_str": "Likes <b>coffee</b>."}
    begun = asyncio.Event()
    calls = [Call("memory_replace", edit)]
    system.model.script(
        # Pieces that arrive together are sent as one event; the earlier pieces are sent unchanged.
        Reply(reasoning="They like coffee.", calls=calls, pause=0.02, held=begun, held_after=0),
        say("Noted: you like coffee.", pause=0.02),
    )
    run_id = await sent(ann, agent)
    operations = await ann.operations(run_id, begun=begun)
    texts = [operation["text"] for operation in operations if operation["op"] == "text"]
    assert "They like coffee." in "".join(texts)
    assert "Noted: you like coffee." in "".join(texts)
    assert len(texts) > 2, "the text comes in pieces"
    html = html_of(operations)
    assert "Running memory_replace" in html
    assert '<div class="del"><del class="plain-mark">-Likes tea.' in html
    [stored] = [m for m in await system.log(agent) if text_of(m) == "Noted: you like coffee."]
    # A browser that lost its connection follows the run again, and gets all that is stored.
    for followed in (operations, await ann.operations(run_id)):
        assert stored.id in {operation["id"] for operation in followed}
        assert "+Likes &lt;b&gt;coffee&lt;/b&gt;." in html_of(followed)
        assert followed[-1]["op"] == "end"


async def test_history_shows_calls_returns_and_edits(system: System, ann: ConsoleClient) -> None:
    agent = await system.make_agent(blocks=[NewBlock(label="human", value="Likes tea.")])
    system.model.script(
        Reply(
            text="Let me note that.",
            reasoning="Worth keeping.",
            calls=[Call("memory_insert", {"label": "human", "new_str": "Has a cat."})],
        ),
        say("Kept."),
    )
    await system.send(agent, "I have a cat.")
    page = (await ann.get(f"/agents/{agent.id}/chat")).text
    for text in ("I have a cat.", "Let me note that.", "Worth keeping.", "Kept.", "+Has a cat."):
        assert text in page
    assert "memory_insert" in page
    assert page.index("I have a cat.") < page.index("Kept.")


async def test_hostile_texts_of_a_turn_are_escaped(system: System, ann: ConsoleClient) -> None:
    agent = await system.make_agent()
    system.model.script(
        Reply(text=HOSTILE, reasoning=HOSTILE, calls=[Call("archival_memory_search", HOSTILE)]),
        Reply(calls=[Call("<b>tool</b>", {"query": HOSTILE}, id='"><script>alert(2)</script>')]),
        say(HOSTILE),
    )
    html = html_of(await ann.operations(await sent(ann, agent, HOSTILE)))
    page = (await ann.get(f"/agents/{agent.id}/chat")).text
    for rendered in (html, page):
        assert shown(HOSTILE) in rendered
        assert "<script>alert" not in rendered
        assert "<img src=x" not in rendered
        assert "<b>tool" not in rendered
        assert "\u202e" not in rendered


async def test_a_failed_run_is_shown_with_its_status(system: System, ann: ConsoleClient) -> None:
    agent = await system.make_agent(model="openai/test-model")
    system.model.respond(lambda _: Reply(text="", refusal="I will not."))
    operations = await ann.operations(await sent(ann, agent))
    assert "status failed" in html_of(operations[-2:])


async def test_a_message_without_htmx_redirects_to_the_chat(
    system: System, ann: ConsoleClient
) -> None:
    agent = await system.make_agent()
    system.model.script(say("Hello."))
    response = await ann.post(f"/agents/{agent.id}/messages", {"text": "Hello."})
    assert response.status_code == 303
    expected = f"/console/agents/{agent.id}/chat?conversation={agent.default_conversation_id}"
    assert response.headers["location"] == expected


async def test_blank_message_is_refused(system: System, ann: ConsoleClient) -> None:
    agent = await system.make_agent()
    response = await ann.post(f"/agents/{agent.id}/messages", {"text": " "}, headers=HTMX)
    assert (response.status_code, response.headers["hx-retarget"]) == (400, "#notices")


async def test_page_follows_an_open_run_which_is_cancelled(
    system: System, ann: ConsoleClient
) -> None:
    agent = await system.make_agent()
    system.model.respond(lambda _: say("A long story. " * 500, pause=0.05))
    run_id = await sent(ann, agent, "Tell me a story.")
    page = (await ann.get(f"/agents/{agent.id}/chat")).text
    assert f'data-events="/console/live/{run_id}"' in page
    response = await ann.post(f"/live/{run_id}/cancel", headers=HTMX)
    assert response.status_code == 204
    operations = await ann.operations(run_id)
    assert "Cancelled." in html_of(operations[-2:])
    page = (await ann.get(f"/agents/{agent.id}/chat")).text
    assert "data-events" not in page
    assert "Tell me a story." in page


async def test_approval_is_shown_and_answered(system: System, ann: ConsoleClient) -> None:
    agent = await system.make_agent(tool_rules=APPROVED)
    system.model.script(call("conversation_search", {"query": "tea"}))
    operations = await ann.operations(await sent(ann, agent, "Do I like tea?"))
    html = html_of(operations)
    assert "Waiting for your approval" in html
    assert "The run waits for an answer." in html
    page = (await ann.get(f"/agents/{agent.id}/chat")).text
    fields = dict(re.findall(r'name="(call|hash|return|approved)" value="([^"]*)"', page))
    [approval_id] = re.findall(r'hx-post="/console/approvals/([^"]+)"', page)

    wrong = await ann.post(f"/approvals/{approval_id}", {**fields, "answer": "perhaps"})
    assert wrong.status_code == 400
    other = {**fields, "answer": "approve", "hash": "0" * 64}
    assert (await ann.post(f"/approvals/{approval_id}", other)).status_code == 400
    system.model.script(say("You like tea."))
    answered = await ann.post(
        f"/approvals/{approval_id}", {**fields, "answer": "approve"}, headers=HTMX
    )
    assert answered.status_code == 200, answered.text
    assert "hx-swap-oob" in answered.text
    [run_id] = re.findall(r'data-events="/console/live/([^"]+)"', answered.text)
    assert "You like tea." in html_of(await ann.operations(run_id))
    page = (await ann.get(f"/agents/{agent.id}/chat")).text
    assert 'hx-post="/console/approvals' not in page
    assert "Approved" in page
    again = await ann.post(f"/approvals/{approval_id}", {**fields, "answer": "approve"})
    assert (again.status_code, "APPROVAL_DECIDED" in again.text) == (400, True)


async def test_a_denial_passes_its_reason_to_the_agent(system: System, ann: ConsoleClient) -> None:
    agent = await system.make_agent(tool_rules=APPROVED)
    system.model.script(call("conversation_search", {"query": "tea"}), say("Then not."))
    await system.send(agent, "Do I like tea?")
    page = (await ann.get(f"/agents/{agent.id}/chat")).text
    fields = dict(re.findall(r'name="(call|hash|return|approved)" value="([^"]*)"', page))
    [approval_id] = re.findall(r'hx-post="/console/approvals/([^"]+)"', page)
    answer = {**fields, "answer": "deny", "reason": "Not <today>."}
    response = await ann.post(f"/approvals/{approval_id}", answer, headers=HTMX)
    [run_id] = re.findall(r'data-events="/console/live/([^"]+)"', response.text)
    await ann.operations(run_id)
    page = (await ann.get(f"/agents/{agent.id}/chat")).text
    assert "Not &lt;today&gt;." in page
    assert "Not <today>." in str((await system.log(agent))[-2])


async def conversation_named(system: System, agent: agent_pb.Agent, title: str) -> str:
    """Starts a conversation with a title; returns its id."""
    request = agent_pb.CreateConversationRequest(agent_id=agent.id, title=title)
    return (await system.agents.CreateConversation(request)).conversation.id


async def test_request_of_a_conversation_is_shown_beside_100_others(
    system: System, ann: ConsoleClient
) -> None:
    agent = await system.make_agent(tool_rules=APPROVED)
    system.model.respond(lambda _: call("conversation_search", {"query": "tea"}))
    conversations = [await conversation_named(system, agent, str(n)) for n in range(101)]
    for conversation_id in conversations:
        await system.send(agent, "Tea?", conversation_id=conversation_id)
    for conversation_id in (conversations[0], conversations[-1]):
        page = await ann.get(f"/agents/{agent.id}/chat?conversation={conversation_id}")
        assert page.text.count('hx-post="/console/approvals/') == 1


async def test_fork_does_not_offer_to_answer_for_its_original(
    system: System, ann: ConsoleClient
) -> None:
    agent = await system.make_agent(tool_rules=APPROVED)
    system.model.script(call("conversation_search", {"query": "tea"}))
    await system.send(agent, "Do I like tea?")
    [request] = [m for m in await system.log(agent) if m.role == message_pb2.ROLE_APPROVAL]
    fork = await system.agents.ForkConversation(
        agent_pb.ForkConversationRequest(
            conversation_id=agent.default_conversation_id, until_message_id=request.id
        )
    )
    pages = [
        (await ann.get(f"/agents/{agent.id}/chat?conversation={conversation_id}")).text
        for conversation_id in (agent.default_conversation_id, fork.conversation.id)
    ]
    assert ["conversation_search" in page for page in pages] == [True, True]
    assert ["/console/approvals/" in page for page in pages] == [True, False]


async def test_a_conversation_that_is_not_listed_has_its_title(
    system: System, ann: ConsoleClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat, "_CONVERSATIONS", 2)
    agent = await system.make_agent()
    await conversation_named(system, agent, "Second")
    page = (await ann.get(f"/agents/{agent.id}/chat")).text
    assert "oldest conversations" not in page
    third = await conversation_named(system, agent, "Third")
    page = (await ann.get(f"/agents/{agent.id}/chat?conversation={third}")).text
    assert "<strong><bdi>Third</bdi></strong>" in page
    assert "The 2 oldest conversations are listed." in page


async def test_conversations_are_started_and_forked(system: System, ann: ConsoleClient) -> None:
    agent = await system.make_agent()
    response = await ann.post(f"/agents/{agent.id}/conversations", {"title": "On <birds>"})
    path = response.headers["location"].removeprefix("/console")
    page = (await ann.get(path)).text
    assert "On &lt;birds&gt;" in page
    system.model.script(say("First."), say("Second."))
    await system.send(agent, "One")
    await system.send(agent, "Two")
    [first] = [m for m in await system.log(agent) if text_of(m) == "First."]
    response = await ann.post(
        f"/agents/{agent.id}/fork",
        {"conversation_id": agent.default_conversation_id, "message_id": first.id},
    )
    page = (await ann.get(response.headers["location"].removeprefix("/console"))).text
    assert ("First." in page, "Second." in page) == (True, False)


async def test_earlier_messages_are_loaded_by_pages(system: System, ann: ConsoleClient) -> None:
    agent = await system.make_agent()
    texts = [f"message number {number}" for number in range(50)]
    inputs = [
        message_pb2.MessageInput(parts=[message_pb2.Part(text=message_pb2.TextPart(text=text))])
        for text in texts
    ]
    system.model.script(say("Read."))
    request = run_pb.SendMessageRequest(agent_id=agent.id, messages=inputs)
    async for _ in system.runs.SendMessage(request):
        pass
    page = (await ann.get(f"/agents/{agent.id}/chat")).text
    assert ("number 49" in page, "number 3<" in page) == (True, False)
    [path] = re.findall(r'hx-get="/console(/agents/[^"]+/chat/earlier[^"]+)"', page)
    part = (await ann.get(path.replace("&amp;", "&"), headers=HTMX)).text
    assert ("number 3<" in part, "number 49" in part) == (True, False)


async def test_image_of_a_message_is_shown(system: System, ann: ConsoleClient) -> None:
    agent = await system.make_agent()
    system.model.script(say("A picture."))
    alt_text = 'A "dot"'
    image = message_pb2.ImagePart(data=png(4, 3), alt_text=alt_text)
    message = message_pb2.MessageInput(
        parts=[
            message_pb2.Part(text=message_pb2.TextPart(text="Look.")),
            message_pb2.Part(image=image),
        ]
    )
    async for _ in system.runs.SendMessage(
        run_pb.SendMessageRequest(agent_id=agent.id, messages=[message])
    ):
        pass
    page = (await ann.get(f"/agents/{agent.id}/chat")).text
    [path] = set(re.findall(r'src="/console(/images/[0-9a-f]+)"', page))
    assert f'alt="{escape(alt_text)}"' in page
    response = await ann.get(path)
    assert (response.headers["content-type"], response.content) == ("image/png", png(4, 3))


def with_images(*images: bytes) -> list[tuple[str, tuple[str, bytes]]]:
    """Returns the files of a form with images."""
    return [("image", (f"picture {number}.png", data)) for number, data in enumerate(images)]


async def test_images_of_a_form_are_sent_and_shown(system: System, ann: ConsoleClient) -> None:
    agent = await system.make_agent()
    system.model.script(say("Two pictures."), say("And one."))
    pictures = [png(4, 3), encoded("WEBP", 5, 2)]
    # The field of files that a browser sends for no file is left out.
    files = [*with_images(*pictures), ("image", ("", b""))]
    response = await ann.post(
        f"/agents/{agent.id}/messages", {"text": "Look."}, headers=HTMX, files=files
    )
    assert response.status_code == 200, response.text
    assert "2 images" in response.text
    match = re.search(r'data-events="/console/live/([^"]+)"', response.text)
    assert match is not None
    live = html_of(await ann.operations(html.unescape(match.group(1))))
    paths = re.findall(r'src="/console(/images/[0-9a-f]+)"', live)
    assert [(await ann.get(path)).content for path in paths] == pictures
    # Without scripts the token is a part of the form; an image needs no text.
    alone = await ann.post(
        f"/agents/{agent.id}/messages", {"text": " "}, files=with_images(png(1, 1))
    )
    assert alone.status_code == 303, alone.text
    runs = (await system.runs.ListRuns(run_pb.ListRunsRequest(agent_id=agent.id))).runs
    for run in runs:
        await system.follow(run.id)
    sent_parts = [
        [part.WhichOneof("content") for part in message.parts]
        for message in await system.log(agent)
        if message.role == message_pb2.ROLE_USER
    ]
    assert sent_parts[-2:] == [["text", "image", "image"], ["image"]]
    page = (await ann.get(f"/agents/{agent.id}/chat")).text
    assert all(path in page for path in paths)


async def test_refused_images_are_listed_by_name(system: System, ann: ConsoleClient) -> None:
    agent = await system.make_agent()
    path = f"/agents/{agent.id}/messages"
    too_large = padded(png(), MAX_IMAGE_BYTES + 1)
    damaged = await ann.post(path, {}, files=with_images(b"GIF89a", too_large, png()))
    assert damaged.status_code == 400
    assert "<code>picture 0.png</code>: the image is not a PNG" in damaged.text
    assert (
        f"<code>picture 1.png</code>: the image has {MAX_IMAGE_BYTES + 1:,} bytes" in damaged.text
    )
    assert "picture 2.png" not in damaged.text
    many = await ann.post(path, {}, files=with_images(*[png()] * 21))
    assert (many.status_code, "at most 20 images" in many.text) == (400, True)
    large = padded(png(), MAX_IMAGE_BYTES)
    together = await ann.post(path, {}, files=with_images(large, large))
    assert (together.status_code, "4,194,304 bytes" in together.text) == (400, True)
    forged = await ann.post(path, {}, token="", files=with_images(png()))
    assert forged.status_code == 403
    headers = {"content-type": "multipart/form-data; boundary=x", "origin": ann.origin}
    broken = await ann.http.post(f"/console{path}", content=b"--y\r\n", headers=headers)
    assert broken.status_code in (400, 403)
    assert not [
        message for message in await system.log(agent) if message.role == message_pb2.ROLE_USER
    ]

"""Open files and the context window: open files never block a conversation."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from doubles.script import Call, Fault, ModelCall, Reply, overflow, say
from inner_services import InnerServices
from sql_queries import execute
from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.api.archival.v1 import passage_service_pb2 as passage_pb
from strata.api.common.v1 import run_event_pb2 as event_pb
from strata.api.core_memory.v1 import block_service_pb2 as block_pb
from strata.api.core_memory.v1 import file_service_pb2 as file_pb
from strata.api.core_memory.v1 import file_service_pb2_grpc as file_grpc
from strata.protocol.errors import FailedPreconditionError, InvalidArgumentError, Reason
from strata.shared.ids import new_id

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(240)]

WINDOW = 32_000
ENGLISH = "The quick brown fox jumps over the lazy dog. "
CHINESE = "春眠不覺曉處處聞啼鳥夜來風雨聲花落知多少"
EMOJI = "🚀🌍🎉🧪🔥"


def tokens(text: str) -> int:
    """Tokens as a modern tokenizer makes them, roughly: one for a Chinese character."""
    wide = sum(1 if character < "\U0001f000" else 2 for character in text if character > "\u2e7f")
    narrow = sum(character <= "\u2e7f" for character in text)
    return wide + -(-narrow // 4)


def size_of(request: ModelCall) -> int:
    """Tokens of a request, tools included."""
    texts = [str(message.get("content") or "") for message in request.body["messages"]]
    calls = [message.get("tool_calls") or [] for message in request.body["messages"]]
    return tokens("".join(texts) + json.dumps(calls) + json.dumps(request.body.get("tools", [])))


class Provider:
    """Answers with given replies, counts tokens, and refuses what exceeds the window."""

    def __init__(self, services: InnerServices, window: int = WINDOW) -> None:
        self.window = window
        self.refused = 0
        self.summaries = 0
        self.replies: list[Reply] = []
        services.model.respond(self._answer)

    def _answer(self, request: ModelCall) -> Reply | Fault:
        size = size_of(request)
        if size > self.window:
            self.refused += 1
            return overflow("openai")
        if not request.tool_names:
            self.summaries += 1
            return say("- They talked.", usage=(size, 5))
        reply = self.replies.pop(0) if self.replies else say("Yes.")
        return Reply(text=reply.text, calls=reply.calls, usage=(size, 5))


def files_of(services: InnerServices) -> Any:
    return file_grpc.FileServiceStub(services.channel("core_memory"))


async def folder_of(services: InnerServices, texts: Sequence[str]) -> file_pb.Folder:
    """A folder of files that can be opened, ``0.txt`` and so on."""
    files = files_of(services)
    request = file_pb.CreateFolderRequest(name=f"docs-{new_id('x')[-8:]}")
    folder: file_pb.Folder = (await files.CreateFolder(request)).folder
    for number, text in enumerate(texts):

        async def parts(text: str = text, number: int = number) -> AsyncIterator[Any]:
            header = file_pb.UploadFileHeader(folder_id=folder.id, name=f"{number}.txt")
            yield file_pb.UploadFileRequest(header=header)
            data = text.encode()
            for at in range(0, len(data), 500_000):
                yield file_pb.UploadFileRequest(chunk=data[at : at + 500_000])

        file = (await files.UploadFile(parts())).file
        async with asyncio.timeout(60):
            async for update in files.WatchFile(file_pb.WatchFileRequest(file_id=file.id)):
                file = update.file
                if file.state != file_pb.FILE_STATE_PARSING:
                    break
    return folder


def lines(text: str, size: int) -> str:
    """A text of so many characters, in lines of some 80."""
    whole = (text * (size // len(text) + 1))[:size]
    return "\n".join(whole[at : at + 80] for at in range(0, size, 80))


async def reader(
    services: InnerServices, folder: file_pb.Folder, *, open_count: int = 0, **fields: Any
) -> pb.Agent:
    agent = await services.make_agent(**fields)
    await files_of(services).AttachFolder(
        file_pb.AttachFolderRequest(agent_id=agent.id, folder_id=folder.id, open_count=open_count)
    )
    return agent


def opening(folder: file_pb.Folder, *numbers: int, **more: Any) -> Call:
    wanted = [{"file_name": f"{folder.name}/{number}.txt"} for number in numbers]
    return Call("open_files", {"file_requests": wanted, **more})


async def open_names(services: InnerServices, agent: pb.Agent) -> list[str]:
    listed = await files_of(services).ListFiles(file_pb.ListFilesRequest(agent_id=agent.id))
    return [open_file.file_name.rpartition("/")[2] for open_file in listed.open_files]


async def talk(services: InnerServices, agent: pb.Agent, turns: int) -> None:
    """Has a conversation in which nothing may be forgotten."""
    for number in range(turns):
        ran = await services.run(agent, f"Message number {number}, please note it.")
        assert ran.finished.stop_reason == event_pb.STOP_REASON_END_TURN, ran.finished
    shown = json.dumps(services.model.requests[-1].body["messages"])
    for number in range(turns):
        assert f"Message number {number}," in shown


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(ENGLISH, id="english", marks=pytest.mark.slow),
        pytest.param(CHINESE, id="chinese", marks=pytest.mark.slow),
        pytest.param(EMOJI, id="emoji"),
        pytest.param(ENGLISH + CHINESE + EMOJI, id="mixed"),
    ],
)
async def test_five_large_files_do_not_block_the_conversation_of_a_default_agent(
    services: InnerServices, text: str
) -> None:
    folder = await folder_of(services, [lines(text, 60_000)] * 5)
    agent = await reader(services, folder)
    provider = Provider(services)
    provider.replies = [Reply(calls=(opening(folder, 0, 1, 2, 3, 4),)), say("I tried.")]
    await services.run(agent, "Open them all.")
    provider.replies = [Reply(calls=(opening(folder, number),)) for number in range(5)]
    await services.run(agent, "Open them one by one.")

    await talk(services, agent, 8)

    assert all(size_of(request) <= WINDOW for request in services.model.requests)
    assert (provider.refused, provider.summaries) == (0, 0)
    if text is ENGLISH:
        assert len(await open_names(services, agent)) >= 3


async def test_opening_a_file_that_does_not_fit_is_refused_with_advice(
    services: InnerServices,
) -> None:
    folder = await folder_of(services, [lines(ENGLISH, 60_000)] * 5)
    agent = await reader(services, folder)
    provider = Provider(services)
    provider.replies = [
        Reply(calls=(opening(folder, 0, 1),)),
        Reply(calls=(opening(folder, 2, 3, 4),)),
    ]
    await services.run(agent, "Open them.")

    (body,) = (json.loads(text) for text in services.model.requests[-1].answered)
    assert body["status"] == "Failed"
    message = body["message"]
    for number in range(5):
        assert f"{folder.name}/{number}.txt (15" in message
    before, after = message.split("Already open:")
    assert f"{folder.name}/2.txt" in before
    assert f"{folder.name}/0.txt" in after
    assert "close_all_others=true" in after
    assert "offset=0 and length=100" in after
    assert await open_names(services, agent) == ["0.txt", "1.txt"]

    provider.replies = [Reply(calls=(opening(folder, 2, 3, close_all_others=True),))]
    await services.run(agent, "Then close the others.")
    assert await open_names(services, agent) == ["2.txt", "3.txt"]


async def test_two_open_files_of_fifty_kilobytes_cause_no_summary(
    services: InnerServices,
) -> None:
    folder = await folder_of(services, [lines(ENGLISH, 50_000)] * 2)
    agent = await reader(services, folder)
    provider = Provider(services)
    provider.replies = [Reply(calls=(opening(folder, 0, 1),)), say("Open.")]
    await services.run(agent, "Open both.")

    await talk(services, agent, 12)

    assert await open_names(services, agent) == ["0.txt", "1.txt"]
    assert (provider.refused, provider.summaries) == (0, 0)


async def test_an_agent_continues_when_others_fill_its_folders(services: InnerServices) -> None:
    """The names of files alone would be larger than the window."""
    folders = [await folder_of(services, []) for _ in range(10)]
    agent = await reader(services, folders[0])
    for folder in folders[1:]:
        await files_of(services).AttachFolder(
            file_pb.AttachFolderRequest(agent_id=agent.id, folder_id=folder.id)
        )
    url = services.urls["core_memory"].admin_url
    ids = [folder.id for folder in folders]
    await execute(
        url,
        "WITH content AS (INSERT INTO core_memory.contents (project_id, content_hash, size_bytes,"
        " media_type, format, state, line_count, char_count, create_time)"
        " SELECT project_id, id, 1, 'text/plain', 'text', 'text', 1, 1, now()"
        " FROM core_memory.folders WHERE id = ANY($1))"
        " INSERT INTO core_memory.files (project_id, id, folder_id, name, media_type,"
        " content_hash, state, create_time, update_time)"
        " SELECT project_id, id || '-' || number, id, repeat('Report of a day. ', 12) || number,"
        " 'text/plain', id, 'ready', now(), now()"
        " FROM core_memory.folders, generate_series(1, 50) number"
        " WHERE id = ANY($1)",
        ids,
    )
    await execute(
        url,
        "UPDATE core_memory.folders SET file_count = 50, revision = revision + 1"
        " WHERE id = ANY($1)",
        ids,
    )
    provider = Provider(services)

    await talk(services, agent, 2)

    assert (provider.refused, provider.summaries) == (0, 0)
    shown = str(services.model.requests[-1].system)
    assert all(f'<directory name="{folder.name}">' in shown for folder in folders)
    assert shown.count('<file status="closed"') > len(folders)


async def test_attaching_a_folder_opens_no_more_files_than_fit(services: InnerServices) -> None:
    folder = await folder_of(services, [lines(CHINESE, 20_000)] * 6)
    agent = await reader(services, folder, open_count=100)
    opened = await open_names(services, agent)
    assert opened
    assert opened == [f"{number}.txt" for number in range(len(opened))]
    assert len(opened) < 3

    provider = Provider(services)
    await talk(services, agent, 4)
    # What other agents of the model taught may be wrong for Chinese, once.
    assert provider.refused <= 1
    assert provider.summaries == 0


async def test_a_smaller_model_closes_the_least_recently_used_files_with_a_note(
    services: InnerServices,
) -> None:
    folder = await folder_of(services, [lines(ENGLISH, 60_000)] * 4)
    large = pb.ModelConfig(handle="test/test-model", context_window=128_000)
    agent = await reader(services, folder, model=large)
    provider = Provider(services, window=128_000)
    provider.replies = [
        Reply(calls=(opening(folder, 3, 2, 1, 0),)),
        Reply(calls=(opening(folder, 3),)),
    ]
    await services.run(agent, "Open all, then look at 3 again.")
    assert await open_names(services, agent) == ["0.txt", "1.txt", "2.txt", "3.txt"]

    small = pb.ModelConfig(handle="test/test-model", context_window=16_000)
    await services.agents.UpdateAgent(pb.UpdateAgentRequest(agent_id=agent.id, model=small))
    provider.window = 16_000
    await talk(services, agent, 3)

    system = services.model.requests[-1].system
    still_open = await open_names(services, agent)
    closed = [name for name in ("2.txt", "1.txt", "0.txt") if name not in still_open]
    assert closed == ["2.txt", "1.txt", "0.txt"][: len(closed)]
    assert closed
    assert "3.txt" in still_open
    names = ", ".join(f"{folder.name}/{name}" for name in closed)
    assert (
        "- warning=these files were closed because the context window has no space for them: "
        f"{names}. Open fewer"
    ) in system
    assert len({request.system for request in services.model.requests[-3:]}) == 1
    assert provider.refused == 0

    provider.replies = [Reply(calls=(opening(folder, 2, close_all_others=True),))]
    await services.run(agent, "Only 2, please.")
    assert "were closed because" not in services.model.requests[-1].system


async def test_blocks_that_grow_close_files_before_a_turn_is_refused(
    services: InnerServices,
) -> None:
    folder = await folder_of(services, [lines(ENGLISH, 60_000)] * 3)
    agent = await reader(services, folder)
    provider = Provider(services)
    provider.replies = [Reply(calls=(opening(folder, 0, 1, 2),))]
    await services.run(agent, "Open them.")

    listed = await services.blocks.ListBlocks(block_pb.ListBlocksRequest(agent_id=agent.id))
    await services.blocks.UpdateBlock(
        block_pb.UpdateBlockRequest(block_id=listed.blocks[0].id, value="x" * 60_000, limit=100_000)
    )
    await talk(services, agent, 3)
    assert provider.refused == 0
    assert len(await open_names(services, agent)) < 3


async def test_a_provider_that_counts_more_tokens_has_files_closed(services: InnerServices) -> None:
    """The estimate is wrong; the refusal of the provider says so."""
    folder = await folder_of(services, [lines(ENGLISH, 60_000)] * 3)
    agent = await reader(services, folder)
    provider = Provider(services)
    provider.replies = [Reply(calls=(opening(folder, 0, 1, 2),))]
    await services.run(agent, "Open them.")

    provider.window = 9_000
    ran = await services.run(agent, "Go on.")
    assert ran.finished.stop_reason == event_pb.STOP_REASON_END_TURN
    assert provider.refused >= 1
    assert len(await open_names(services, agent)) < 3


@pytest.mark.parametrize(
    ("window", "most", "chars"),
    [(8_000, 3, 5_000), (30_000, 5, 15_000), (32_000, 5, 15_000), (128_000, 10, 25_000)],
)
async def test_limits_of_files_follow_the_context_window(
    services: InnerServices, window: int, most: int, chars: int
) -> None:
    folder = await folder_of(services, ["short"])
    agent = await reader(services, folder)
    model = pb.ModelConfig(handle="test/test-model", context_window=window)
    await services.agents.UpdateAgent(pb.UpdateAgentRequest(agent_id=agent.id, model=model))
    Provider(services)
    await services.run(agent, "Hello.")
    system = services.model.requests[-1].system
    assert f"- max_files_open={most}\n" in system
    assert f"- chars_limit={chars}\n" in system.partition("<directories>")[2]
    shown = await services.agents.GetContextWindow(pb.GetContextWindowRequest(agent_id=agent.id))
    assert (shown.max_files_open, shown.per_file_view_window_char_limit) == (most, chars)


async def test_limits_that_no_file_could_use_are_refused(services: InnerServices) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        await services.make_agent(max_files_open=1_000, per_file_view_window_char_limit=500_000)
    fields = [violation.field for violation in caught.value.violations]
    assert fields == ["max_files_open", "per_file_view_window_char_limit"]
    assert "has space for" in caught.value.violations[1].description

    agent = await services.make_agent(per_file_view_window_char_limit=20_000)
    small = pb.ModelConfig(handle="test/test-model", context_window=8_000)
    update = pb.UpdateAgentRequest(agent_id=agent.id, model=small)
    with pytest.raises(InvalidArgumentError, match="per_file_view_window_char_limit is 20000"):
        await services.agents.UpdateAgent(update)
    update.per_file_view_window_char_limit = 0
    await services.agents.UpdateAgent(update)


async def test_users_cannot_open_files_without_space(services: InnerServices) -> None:
    folder = await folder_of(services, [lines(CHINESE, 20_000)] * 3)
    agent = await reader(services, folder)
    request = file_pb.OpenFilesRequest(
        agent_id=agent.id,
        windows=[file_pb.FileWindow(file_name=f"{folder.name}/{n}.txt") for n in range(3)],
    )
    with pytest.raises(FailedPreconditionError, match="open fewer files at once") as caught:
        await files_of(services).OpenFiles(request)
    assert caught.value.reason is Reason.CONTEXT_WINDOW_EXCEEDED
    assert await open_names(services, agent) == []
    del request.windows[1:]
    await files_of(services).OpenFiles(request)
    assert await open_names(services, agent) == ["0.txt"]


async def test_a_prompt_that_is_too_large_names_its_parts(services: InnerServices) -> None:
    """Not even files that are closed make space: the message says what is large."""
    agent = await services.make_agent(
        blocks=[block_pb.NewBlock(label="human", value="x" * 60_000, limit=100_000)]
    )
    # Written past the API, as by an operator who lowers the window of a model.
    model = pb.ModelConfig(handle="test/test-model", context_window=128_000)
    await services.agents.UpdateAgent(pb.UpdateAgentRequest(agent_id=agent.id, model=model))
    listed = await services.blocks.ListBlocks(block_pb.ListBlocksRequest(agent_id=agent.id))
    await services.blocks.UpdateBlock(
        block_pb.UpdateBlockRequest(
            block_id=listed.blocks[0].id, value="y" * 250_000, limit=300_000
        )
    )
    await shrink_model(services, agent, WINDOW)
    asked = len(services.model.requests)
    ran = await services.run(agent, "Hello.")
    assert ran.finished.stop_reason == event_pb.STOP_REASON_CONTEXT_WINDOW_OVERFLOW_IN_SYSTEM_PROMPT
    assert ran.finished.error.reason == "CONTEXT_WINDOW_EXCEEDED"
    assert "context window of 32000: memory blocks 4" in ran.finished.error.message
    assert "Shorten or detach memory blocks" in ran.finished.error.message
    assert len(services.model.requests) == asked


async def test_memory_that_the_provider_counts_as_too_long_is_named(
    services: InnerServices,
) -> None:
    """The limit of memory is an estimate in bytes; a provider can count three times as many."""
    agent = await services.make_agent()
    provider = Provider(services)
    await services.run(agent, ENGLISH * 200)
    blocks = await services.blocks.ListBlocks(block_pb.ListBlocksRequest(agent_id=agent.id))
    human = next(block for block in blocks.blocks if block.label == "human")
    request = block_pb.UpdateBlockRequest(block_id=human.id, value=EMOJI * 3_300)
    await services.blocks.UpdateBlock(request)

    ran = await services.run(agent, "Hello.")

    assert provider.refused > 0
    assert ran.finished.stop_reason == event_pb.STOP_REASON_CONTEXT_WINDOW_OVERFLOW_IN_SYSTEM_PROMPT
    assert ran.finished.error.reason == "CONTEXT_WINDOW_EXCEEDED"
    message = ran.finished.error.message
    assert "refused the request as too long (This model's maximum context length" in message
    assert "context window of 32000: memory blocks " in message
    assert "Shorten or detach memory blocks" in message
    request.value = "Her name is Ada."
    await services.blocks.UpdateBlock(request)
    assert (await services.run(agent, "Hello.")).text == "Yes."


async def test_the_shown_context_window_equals_the_next_model_call(
    services: InnerServices,
) -> None:
    """Files and edits since the last turn are in it, and the schemas of the file tools."""
    folder = await folder_of(services, [lines(ENGLISH, 60_000)] * 2)
    agent = await reader(services, folder)
    Provider(services)
    await services.run(agent, "Hello.")
    names = [f"{folder.name}/{number}.txt" for number in range(2)]
    await files_of(services).OpenFiles(
        file_pb.OpenFilesRequest(
            agent_id=agent.id, windows=[file_pb.FileWindow(file_name=name) for name in names]
        )
    )
    listed = await services.blocks.ListBlocks(block_pb.ListBlocksRequest(agent_id=agent.id))
    await services.blocks.UpdateBlock(
        block_pb.UpdateBlockRequest(block_id=listed.blocks[0].id, value="Ada " * 500)
    )
    passage = passage_pb.NewPassage(text="Ada likes tea.", tags=["taste"])
    await services.passages.InsertPassage(
        passage_pb.InsertPassageRequest(agent_id=agent.id, passage=passage)
    )
    before = await services.window(agent)

    shown = await services.agents.GetContextWindow(pb.GetContextWindowRequest(agent_id=agent.id))
    assert await services.window(agent) == before, "looking stores nothing"
    await services.run(agent, "Next.")

    request = services.model.requests[-1]
    assert shown.system_message == request.system
    parts = {part.name: part for part in shown.parts}
    assert parts["files"].count == 2
    assert parts["files"].characters > 30_000
    assert parts["tools"].count == len(request.tool_names) == 9
    *earlier, _ = request.body["messages"][1:]
    assert parts["messages"].count == len(earlier) == 2
    assert parts["messages"].characters == sum(len(message["content"]) for message in earlier)
    sent = len(request.system.encode()) + sum(len(message["content"]) for message in earlier)
    schemas = [tool["function"] for tool in request.body["tools"]]
    sent += sum(len(tool["name"]) + len(tool["description"]) for tool in schemas)
    sent += sum(
        len(json.dumps(tool["parameters"], ensure_ascii=False, separators=(",", ":")).encode())
        for tool in schemas
    )
    by_files = parts["files"].tokens / parts["files"].characters
    assert shown.used_tokens == pytest.approx(sent * by_files, rel=0.01)


async def test_context_window_names_the_files_closed_and_messages_compacted_by_the_next_turn(
    services: InnerServices,
) -> None:
    folder = await folder_of(services, [lines(ENGLISH, 12_000)] * 3)
    agent = await reader(services, folder)
    provider = Provider(services)
    provider.replies = [Reply(calls=(opening(folder, 0, 1, 2),)), say("Open.")]
    await services.run(agent, "Open them.")
    request = pb.GetContextWindowRequest(agent_id=agent.id)
    shown = await services.agents.GetContextWindow(request)
    assert (list(shown.files_to_close), shown.compaction_due) == ([], False)
    for _ in range(6):
        await services.run(agent, ENGLISH * 80)
    await shrink_model(services, agent, 12_000)
    provider.window = 12_000

    shown = await services.agents.GetContextWindow(request)

    assert shown.compaction_due
    names = await open_names(services, agent)
    assert names == ["0.txt", "1.txt", "2.txt"], "looking closes nothing"
    assert provider.summaries == 0, "looking compacts nothing"
    await services.run(agent, "Hello.")
    left = [f"{folder.name}/{name}" for name in await open_names(services, agent)]
    assert 0 < len(left) < 3
    assert {*shown.files_to_close, *left} == {f"{folder.name}/{name}" for name in names}
    assert provider.summaries == 1
    shown = await services.agents.GetContextWindow(request)
    assert (list(shown.files_to_close), shown.compaction_due) == ([], False)


async def test_a_small_space_for_messages_causes_no_summary_at_each_turn(
    services: InnerServices,
) -> None:
    # The limit of memory follows from what the project's requests taught before.
    model = pb.ModelConfig(handle="test/test-model", context_window=8_650)
    provider = Provider(services, 8_650)
    await services.run(await services.make_agent(model=model), "Hello.")
    agent = await services.make_agent(model=model)
    blocks = await services.blocks.ListBlocks(block_pb.ListBlocksRequest(agent_id=agent.id))
    block = next(block for block in blocks.blocks if block.label == "human")
    text, step = "", 2_000
    while step > 20:  # until core memory refuses any more
        update = block_pb.UpdateBlockRequest(block_id=block.id, value=text + "x" * step)
        update.limit = 40_000
        try:
            await services.blocks.UpdateBlock(update)
            text = update.value
        except FailedPreconditionError:
            step //= 2
    # Then less than a twentieth of the prompt is left for messages.
    await shrink_model(services, agent, 8_000)
    provider.window = 8_000

    for number in range(10):
        ran = await services.run(agent, f"{number} {'word ' * 250}")
        assert ran.finished.stop_reason == event_pb.STOP_REASON_END_TURN, ran.finished

    assert (provider.refused, provider.summaries) == (0, 0)
    assert services.model.requests[-1].last_text.count("word") == 250
    assert len((await services.window(agent)).messages) < 8, "what is read does not grow"


async def shrink_model(services: InnerServices, agent: pb.Agent, window: int) -> None:
    await execute(
        services.urls["agent_loop"].admin_url,
        "UPDATE agent_loop.agents SET model = jsonb_set(model, '{context_window}', $1::jsonb)"
        " WHERE id = $2",
        str(window),
        agent.id,
    )


async def test_a_person_cannot_open_more_files_than_the_agent_allows(
    services: InnerServices,
) -> None:
    folder = await folder_of(services, [lines(ENGLISH, 500)] * 4)
    agent = await reader(services, folder, open_count=100, max_files_open=2)
    assert await open_names(services, agent) == ["0.txt", "1.txt"]
    await services.agents.UpdateAgent(pb.UpdateAgentRequest(agent_id=agent.id, max_files_open=1))
    with pytest.raises(InvalidArgumentError, match="1 files"):
        await person_opens(services, agent, folder, 2, 3)


async def test_a_person_has_as_much_space_for_files_as_the_tool_of_the_agent(
    services: InnerServices,
) -> None:
    folder = await folder_of(services, [lines(CHINESE, 20_000)] * 5)
    agent = await reader(services, folder)
    # The estimate of bytes per token is that of the moment in which a limit was sent. A turn of
    # the agent makes it the agent's own: before, it is what other agents have taught.
    for system in ("Be kind.", "Be nice."):
        await services.agents.UpdateAgent(pb.UpdateAgentRequest(agent_id=agent.id, system=system))
        services.model.script(say("Hello."))
        await services.run(agent, "Hello.")
    await services.agents.UpdateAgent(pb.UpdateAgentRequest(agent_id=agent.id, system="Be kind."))
    with pytest.raises(FailedPreconditionError, match="there is space for") as refused:
        await person_opens(services, agent, folder, *range(5))
    services.model.script(Reply(calls=[opening(folder, *range(5))]), say("They are too long."))
    await services.run(agent, "Open the files.")
    (content,) = services.model.requests[-1].answered
    spaces = [
        int(re.search(r"there is space for (\d+) bytes", text)[1])  # type: ignore[index]
        for text in (refused.value.message, content)
    ]
    # A turn has its system message; a limit that is sent ahead allows for the largest metadata.
    assert abs(spaces[0] - spaces[1]) < spaces[1] * 0.1, spaces


async def person_opens(
    services: InnerServices, agent: pb.Agent, folder: file_pb.Folder, *numbers: int
) -> None:
    windows = [file_pb.FileWindow(file_name=f"{folder.name}/{number}.txt") for number in numbers]
    request = file_pb.OpenFilesRequest(
        request_id=new_id("request"), agent_id=agent.id, windows=windows
    )
    await files_of(services).OpenFiles(request)

"""The examples, texts and limits in docs/wire-format.md match the code."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from zoneinfo import ZoneInfo

import pytest

from strata.agent_loop.agents import first_messages
from strata.agent_loop.compaction import compactor, plan, transcript
from strata.agent_loop.context import added_arguments, packaging, requests, token_budget
from strata.agent_loop.convert import agent_options
from strata.agent_loop.domain.agent import agents, file_limits, message_buffer
from strata.agent_loop.domain.agent.groups import DEFAULT_TERMINATION_TOKEN
from strata.agent_loop.domain.conversation import messages
from strata.agent_loop.domain.model import chat
from strata.agent_loop.domain.model.quirks import Quirks
from strata.agent_loop.domain.ports import ArchivalStats
from strata.agent_loop.domain.run import runs
from strata.agent_loop.loop import failures, nested_calls, replies_in_json, strategy, turn_rules
from strata.agent_loop.memory_inputs import documents, transcripts, voice_transcripts
from strata.agent_loop.models import conversation_repair, tokens
from strata.agent_loop.prompts import library, summary, system_message
from strata.agent_loop.rules import refusals, repetition
from strata.agent_loop.rules import validation as rule_validation
from strata.api.agent_loop.v1 import group_service_pb2 as group_pb
from strata.archival.convert import archives as archival
from strata.archival.convert.passages import MAX_PASSAGE_TOKENS
from strata.core_memory.convert import blocks as block_requests
from strata.core_memory.convert import context as context_requests
from strata.core_memory.domain import blocks
from strata.core_memory.domain.prompt import memory_section, tool_rules
from strata.core_memory.domain.prompt.compilation import FileLimits
from strata.core_memory.domain.text_edits import messages as edit_messages
from strata.core_memory.domain.text_edits import patches
from strata.core_memory.domain.text_edits.edited_text import apply_edit
from strata.core_memory.domain.text_edits.verbs import Insert, Replace, StringReplace, TextEdit
from strata.core_memory.files.domain import (
    directories,
    file_windows,
    files,
    grep,
    grep_report,
    search,
    window_plans,
)
from strata.core_memory.files.text_extraction import pages
from strata.gateway.groups.exchange import GroupMessages
from strata.gateway.groups.managers import Dynamic
from strata.gateway.runs.convert import runs as run_requests
from strata.protocol import images
from strata.protocol.errors import StrataError
from strata.recall.convert import search as recall
from strata.shared import json_text, member_labels, tool_arguments, tool_returns
from strata.shared.agent_types import AgentType
from strata.shared.messages import MessageRole, ToolStatus
from strata.shared.stop_reasons import StopReason
from strata.shared.tool_catalogue import MEMORIES_STORED, SENT_MESSAGE, default_tools
from strata.shared.tool_rules import ToolRuleType, rule_sentence
from strata.tool_execution.builtin import agents as agent_tools
from strata.tool_execution.builtin import code, summaries, voice_memory
from strata.tool_execution.convert import tools as convert_registry
from strata.tool_execution.domain import dates, memory_command, registry
from strata.tool_execution.domain.tools import ToolError
from unit.house.repository import REPOSITORY, sections

DOCUMENT = (REPOSITORY / "docs" / "wire-format.md").read_text("utf-8")
SECTIONS = sections(DOCUMENT)
NOW = datetime(2026, 11, 21, 20, 43, 9, tzinfo=UTC)
ZONE = "UTC"


def block(label: str, description: str, value: str) -> blocks.Block:
    return blocks.Block(
        id=f"block-{label}",
        label=label,
        value=value,
        description=description,
        limit=blocks.DEFAULT_LIMIT,
        read_only=False,
        revision=1,
        create_time=NOW,
        update_time=NOW,
    )


def system_text() -> str:
    form = memory_section.MemoryForm.of("letta_v1_agent", line_numbers=False)
    persona = replace(block("persona", "Who you are.", "I am Ada."), read_only=True)
    human = block("human", "Whom you talk to.", "Name: Sam\nLikes rowing")
    notes = replace(
        block("notes", "Notes of lasting use.", "The harbour opens at 9."), limit=25, taint=("web",)
    )
    rules = [
        tool_rules.ToolRule(ToolRuleType.CONTINUE_LOOP, "memory_insert"),
        tool_rules.ToolRule(ToolRuleType.EXIT_LOOP, "send_message"),
    ]
    file = file_windows.AttachedFile("file-1", "boat/handbook.md", files.ContentState.TEXT, "", 40)
    view = directories.FolderView(
        "boat",
        "Papers of our boat.",
        "Quote the line.",
        [file_windows.FileWindow(file, 11, 12, NOW)],
        ["boat/log.csv"],
        950,
    )
    section = memory_section.render_memory(
        form,
        [persona, human, notes],
        rules,
        directories=directories.render_directories(
            [view],
            {"file-1": "Change the oil every 150 hours.\nReplace the impeller each spring."},
            ["persona", "human", "notes"],
            FileLimits(),
        ),
    )
    metadata = system_message.Metadata(
        now=NOW,
        timezone=ZONE,
        last_modified=NOW,
        hidden_messages=12,
        archival=system_message.archival_lines(
            ArchivalStats(3, ["boat", "family"], 4), ["persona", "human", "notes"]
        ),
    )
    return system_message.assemble("(the system prompt of the agent)", section, metadata)


def numbered_text() -> str:
    form = memory_section.MemoryForm.of("letta_v1_agent", line_numbers=True)
    text = memory_section.render_memory(
        form, [block("human", "Who.", "Name: Sam\nLikes rowing")], []
    )
    return text[text.index("<warning>") : text.index("</human>")].rstrip("\n")


def transcript_text() -> str:
    user = messages.Message(
        id="message-1",
        role=MessageRole.USER,
        parts=(chat.TextPart("I moved to Riga."),),
        conversation_id="conversation-1",
        name="Sam",
    )
    call = chat.ToolCall("call-1", "memory_insert", "{}")
    content, _ = tool_returns.pack("OK", None, NOW, 100)
    tool_return = messages.ToolReturn("call-1", "memory_insert", ToolStatus.OK, content)
    reply = replace(
        user,
        role=MessageRole.ASSISTANT,
        name="",
        parts=(chat.TextPart("Since when?\nI shall note it."), call),
    )
    returned = replace(reply, role=MessageRole.TOOL, parts=(tool_return,))
    read = runs.TranscriptRange("agent-1", "conversation-1", -1, 9)
    shown = transcripts.read_transcript([user, reply, returned], read, 10_000).message
    return "\n".join(part.text for part in shown.parts if isinstance(part, chat.TextPart))


def refusal_of(
    edit: TextEdit, value: str = "a\nb\nc\nd\ne\nf\ng", *, read_only: bool = False, limit: int = 100
) -> str:
    edited = replace(block("LABEL", "", value), read_only=read_only, limit=limit)
    with pytest.raises(StrataError) as caught:
        apply_edit(edited, edit)
    return caught.value.message


def refusals_of_file_tools() -> Iterator[str]:
    """Yields the messages that refuse calls of `open_files` and `grep_files`."""

    def opening(*requests: file_windows.WindowRequest) -> file_windows.OpenWindows:
        return file_windows.OpenWindows("agent-1", requests, max_open=2)

    request, file = file_windows.WindowRequest, file_windows.AttachedFile
    wrong_openings = (
        opening(),
        opening(request("A"), request("B"), request("C")),
        opening(request("NAME", offset=-1)),
        opening(request("NAME", length=0)),
    )
    for command in wrong_openings:
        with pytest.raises(StrataError) as caught:
            window_plans.check_requests(command)
        yield caught.value.message
    attached = file("file-1", "NAME", files.ContentState.TEXT, "", 40)
    with pytest.raises(StrataError) as caught:
        window_plans.plan_opening(opening(request("NAME", offset=500)), {"NAME": attached}, [], NOW)
    yield caught.value.message
    for pattern in ("", "a" * 1001):
        with pytest.raises(StrataError) as caught:
            grep.check_query(grep.GrepQuery("agent-1", pattern))
        yield caught.value.message


def refusals_of_memory_and_searches() -> Iterator[str]:
    """Yields messages that refuse calls of `memory` and of the search tools."""
    yield memory_command.problem_of({"command": "view"}) or ""
    with pytest.raises(ToolError) as unreadable:
        dates.start_of("soon", "start_date", ZoneInfo("UTC"))
    yield str(unreadable.value)
    with pytest.raises(StrataError) as long:
        archival.checked_tokens("", lambda _: 20002, MAX_PASSAGE_TOKENS)
    yield long.value.message


def boot_return() -> str:
    """Returns the message in the return of the boot call, as JSON."""
    kind = AgentType.MEMGPT_V2
    agent = agents.Agent("agent-1", "Ada", kind, "", tools=default_tools(kind))
    _, returned, _ = first_messages.first_messages(agent, "conversation-1", NOW, Quirks())
    [part] = returned.tool_returns
    return json.dumps(json.loads(part.content)["message"])


def question_of_a_group() -> str:
    """Returns what a manager agent is asked, without the lines of the members."""
    group = group_pb.Group(members=[group_pb.GroupMember(agent_id="agent-1", name="Ada")])
    group.manager.termination_token = "TOKEN"
    turn = Dynamic(group, GroupMessages([])).next_turn()
    assert turn is not None
    text: str = turn.messages[0].message.parts[0].text.text
    return text.partition("\n")[0]


EXAMPLES: dict[str, Callable[[], str]] = {
    "layout": system_text,
    "line-numbers": numbered_text,
    "packed-user-messages": lambda: packaging.pack_user_message(
        "Hello", NOW, ZONE, location="Riga", name="Sam"
    ),
    "tool-returns": lambda: packaging.package(ToolStatus.OK, SENT_MESSAGE, NOW, ZONE),
    "heartbeats": lambda: packaging.pack_heartbeat(strategy.HEARTBEAT_REQUESTED, NOW, ZONE),
    "first-messages": lambda: packaging.pack_login(NOW, ZONE),
    "summaries": lambda: packaging.pack_summary("Sam moved to Riga.", NOW, ZONE),
    "transcripts-of-memory-agents": transcript_text,
}

TEXTS = (
    packaging.HIDDEN.strip(),
    packaging.CANCELLED,
    packaging.TIMED_OUT,
    packaging.NOT_STARTED,
    packaging.OUTCOME_UNKNOWN,
    packaging.EXPIRED,
    packaging.UNANSWERED,
    packaging.NO_RETURN,
    packaging.NO_RETURN_IN_TIME,
    packaging.NOT_WAITED_FOR,
    packaging.NOT_REACHED,
    packaging.DEPENDED,
    packaging.denied("REASON"),
    strategy.REQUIRED_V3.format("NAMES"),
    strategy.REQUIRED_V2.format("NAMES"),
    strategy.RULE_VIOLATED,
    strategy.CHILD_RULE,
    strategy.CONTINUE_RULE,
    strategy.HEARTBEAT_REQUESTED,
    strategy.CALL_FAILED,
    refusals.CONSTRAINT,
    refusals.NOT_JSON,
    refusals.TOO_DEEP,
    refusals.NOT_AN_OBJECT,
    refusals.INVALID_PREFILLED,
    refusals.NOT_RUN,
    refusals.NOT_APPROVED,
    tool_arguments.INVALID,
    first_messages.BOOT_THOUGHT,
    first_messages.BOOT_MESSAGE,
    packaging.FIRST_LOGIN,
    SENT_MESSAGE,
    MEMORIES_STORED,
    tool_rules.INTRODUCTION,
    tool_returns._NOTE.format(length="LENGTH", limit="LIMIT").strip(),
    transcript.CLIP_MARK,
    transcript._EXTRACT_TAIL,
    summary.SUMMARY_ACKNOWLEDGEMENT,
    conversation_repair.MISSING_RETURN,
    conversation_repair.BLANK_MESSAGE,
    conversation_repair.OPENING,
    conversation_repair.CONTINUE,
    requests.BLIND_MODEL,
    requests.TOO_MANY_IMAGES,
    requests.NO_SPACE_FOR_IMAGE,
    requests._MARK.format("N"),
    transcripts._cut_line("a" * 100, 10).lstrip("a").replace("90", "N"),
    grep_report._shortened("a" * 1500, (700, 710)).replace("a" * 1000, "TEXT").replace("1500", "N"),
    replies_in_json._REPAIR.format("PROBLEM"),
    replies_in_json._REPAIR_CALL.format("PROBLEM"),
    replies_in_json._NOT_RUN,
    turn_rules._REPEATED.format("N"),
    edit_messages.REVIEW,
    edit_messages.success_message(Insert(""), "LABEL").removesuffix(f" {edit_messages.REVIEW}"),
    edit_messages.unknown_label("LABEL", ["A", "B"]).message,
    edit_messages.label_taken("LABEL").message,
    edit_messages.edit_conflict(block("LABEL", "", "")).message.partition(" Nothing was done")[0],
    refusal_of(Replace("TEXT", "")),
    refusal_of(StringReplace("TEXT", "")),
    refusal_of(StringReplace("TEXT", ""), "a\nTEXT\nTEXT"),
    refusal_of(Insert("", 99)),
    refusal_of(Insert("1→ a")).partition(" Line numbers")[0].replace("new_str", "NAME"),
    refusal_of(Insert(""), read_only=True),
    refusal_of(Insert(""), limit=3).partition(" Memory block")[0],
    question_of_a_group(),
    DEFAULT_TERMINATION_TOKEN,
    search.message_of(search.FileQuery("agent-1", "QUERY"), [], 0),
    window_plans.not_attached("NAME", ["NAMES"]).message,
    *refusals_of_file_tools(),
    *refusals_of_memory_and_searches(),
    added_arguments._THINKING_SCHEMA["description"],
    added_arguments._HEARTBEAT_SCHEMA["description"],
    failures.no_tool_call().failure.message.partition(".")[0],
    *directories.TRUNCATED.split("\n"),
    directories._closed_note(["NAMES"], []).strip(),
    documents.GONE,
    *(
        sentence
        for kind in ToolRuleType
        if (sentence := rule_sentence(kind, "X", ("A", "B"), 3)) is not None
    ),
    *(reason.value for reason in StopReason),
)

LIMITS: dict[str, object] = {
    "Characters of a block's value, default": blocks.DEFAULT_LIMIT,
    "Characters of a block's value, highest limit": blocks.MAX_LIMIT,
    "Percent of its limit from which a block is nearly full": blocks.NEARLY_FULL_PERCENT,
    "Characters of a description of a block": block_requests.MAX_DESCRIPTION_CHARS,
    "Blocks of an agent": context_requests.MAX_BLOCKS_OF_AGENT,
    "Hunks of a patch": patches.MAX_HUNKS,
    "Blocks of a patch": patches.MAX_SECTIONS,
    "UTF-8 bytes of the tags in the prompt": system_message.TAGS_BYTES,
    "Characters of a tag": archival.MAX_TAG_CHARS,
    "Tags of a passage": archival.MAX_TAGS,
    "Tokens of a passage": MAX_PASSAGE_TOKENS,
    "Characters of a query, archival memory and files": archival.MAX_QUERY_CHARS,
    "Characters of a query, recall memory": recall.MAX_QUERY_CHARS,
    "Results of a search, default": recall.DEFAULT_SEARCH_LIMIT,
    "Results of a search of messages or passages, most": recall.MAX_SEARCH_LIMIT,
    "Results of a search of files, most": search.MAX_LIMIT,
    "Characters of a page of `expand_summary`": summaries.PAGE_CHARS,
    "Closed files shown of a folder": directories.CLOSED_SHOWN,
    "UTF-8 bytes of folders and closed files in a prompt, least": directories.LEAST_LISTING_BYTES,
    "UTF-8 bytes of folders and closed files in a prompt, most": directories.MOST_LISTING_BYTES,
    "Names of files in a message": window_plans.NAMES_SHOWN,
    "Characters of a name of a file or folder": files.MAX_NAME_CHARS,
    "Characters of a line of a file": pages.MAX_LINE_CHARS,
    "Characters of a pattern": grep.MAX_PATTERN_CHARS,
    "Lines around a match": grep.MAX_CONTEXT_LINES,
    "Matches of a page": grep.MATCHES_A_PAGE,
    "Matches of a search": grep.MAX_MATCHES,
    "Seconds of a search by pattern": int(grep.MAX_SECONDS),
    "Characters of a return, default": tool_returns.FUNCTION_RETURN_CHAR_LIMIT,
    "Characters of a return, highest limit": convert_registry.MAX_RETURN_CHARS,
    "UTF-8 bytes of a packed return": tool_returns.MAX_RETURN_BYTES,
    "UTF-8 bytes of the returns of a step": packaging.MAX_STEP_RETURN_BYTES,
    "Characters of a return in a request, at least": packaging.MIN_RETURN_CHARS,
    "Characters of the arguments of a call": tool_arguments.MAX_ARGUMENT_CHARS,
    "Levels of JSON": json_text.MAX_JSON_DEPTH,
    "Characters of the name of a tool": registry.MAX_NAME,
    "Characters of a call id on the wire": conversation_repair.CALL_ID_LIMIT,
    "Calls that code makes": nested_calls.MAX_NESTED_CALLS,
    "Characters of each output of code": code.OUTPUT_CHARS,
    "Agents that one message reaches": agent_tools.MAX_RECIPIENTS,
    "Memories of `store_memories`": voice_memory.MAX_MEMORIES,
    "Tokens of a context window, at least": agent_options.MIN_CONTEXT_WINDOW,
    "Tokens of a context window, default": chat.DEFAULT_CONTEXT_WINDOW,
    "Steps of a run, default": runs.DEFAULT_MAX_STEPS,
    "Steps of a run, most": run_requests.MAX_STEPS,
    "Messages of a request": run_requests.MAX_MESSAGES,
    "Characters of the messages of a request": run_requests.MAX_CHARACTERS,
    "Characters of a system prompt": library.MAX_PROMPT_CHARS,
    "Rules of an agent": rule_validation.MAX_RULES,
    "Equal steps after which the model is told": repetition.REPETITIONS_NOTED,
    "Equal steps after which the run ends": repetition.REPETITIONS_ENDED,
    "Bytes of an image": images.MAX_IMAGE_BYTES,
    "Pixels of a side of an image": images.MAX_IMAGE_PIXELS,
    "Images of a request": images.MAX_IMAGES,
    "Bytes of the images of a request": images.MAX_IMAGES_BYTES,
    "Characters of a label of a member of a group": member_labels.MAX_LABEL_CHARS,
    "Characters of a summary, default": agents.DEFAULT_CLIP_CHARS,
    "Bytes of space below which no model is asked for a summary": compactor.MIN_SUMMARISED_SPACE,
    "Bytes of a packed summary, at least": plan.MIN_SUMMARY_BYTES,
    "Characters of a message in the transcript of a summarizer": transcript.PIECE_CHARS,
    "Characters of a return in the transcript of a summarizer": transcript.RETURN_CHARS,
    "Bytes to which each text of a request is cut at most": requests.MIN_PIECE_BYTES,
    "Messages in the window of a voice agent, longest": message_buffer.DEFAULT_MAX_BUFFER,
    "Messages in the window of a voice agent, shortest": message_buffer.DEFAULT_MIN_BUFFER,
}

SHARES = {
    "Headroom of a prompt": tokens.DEFAULT_HEADROOM,
    "Messages, where memory and files grow": token_budget.MESSAGES_SHARE,
    "Messages, when files are opened": token_budget.FILES_SHARE,
    "Messages, for a compaction to be worth its cost": token_budget.MIN_SPACE_SHARE,
    "Messages found by one search": token_budget.SEARCH_SHARE,
    "One tool return": packaging._WINDOW_SHARE,
    "What a compaction frees": agents.DEFAULT_EVICTED_SHARE,
    "The summary": plan._SUMMARY_SHARE,
    "The transcript of a memory agent": transcripts.READING_SHARE,
}


@pytest.mark.parametrize("anchor", EXAMPLES)
def test_examples_equal_the_rendered_text(anchor: str) -> None:
    assert example(anchor) == EXAMPLES[anchor]()


def test_fixed_texts_are_documented() -> None:
    assert [text for text in TEXTS if text not in DOCUMENT] == []


def test_the_return_of_the_boot_call_is_documented() -> None:
    assert f"the return of the call, with the message `{boot_return()}`" in DOCUMENT


def test_limits_are_documented() -> None:
    limits = {name: f"{limit:,}" for name, limit in LIMITS.items()}
    assert {name: rows().get(name) for name in limits} == limits


def test_shares_are_documented() -> None:
    shares = {name: f"{share:.0%}".replace("%", " %") for name, share in SHARES.items()}
    assert {name: rows().get(name) for name in shares} == shares


def test_limits_of_open_files_are_documented() -> None:
    table = SECTIONS["open-files"]
    for most, limits in file_limits._BY_CONTEXT_WINDOW:
        row = f"| {most:,} | {limits.max_open} | {limits.view_chars:,} |"
        assert row in table
    largest = file_limits._LARGEST
    assert f"| more | {largest.max_open} | {largest.view_chars:,} |" in table


def test_reminders_of_background_agents_are_documented() -> None:
    for reminder in (
        transcripts.REMINDER,
        voice_transcripts.REMINDER,
        documents.DOCUMENT_REMINDER,
    ):
        assert reminder in DOCUMENT


def example(anchor: str) -> str:
    """Returns the first code block under a heading."""
    match = re.search(r"^```\w*\n(.*?)\n```$", SECTIONS[anchor], re.MULTILINE | re.DOTALL)
    assert match is not None, anchor
    return match[1]


@cache
def rows() -> dict[str, str]:
    """Returns the rows of all tables with two or more columns: first cell to second."""
    cells = re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|", DOCUMENT, re.MULTILINE)
    return dict(cells)

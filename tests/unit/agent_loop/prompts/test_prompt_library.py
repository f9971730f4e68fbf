"""System prompts by key: the built-in ones, and the files of a folder."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.agent_loop.domain.agent.types import AGENT_TYPES
from strata.agent_loop.prompts import library as library_module
from strata.agent_loop.prompts.base import base_prompt
from strata.agent_loop.prompts.library import (
    BUILTIN_DESCRIPTIONS,
    MAX_LISTED_FILES,
    MAX_PROMPT_CHARS,
    PromptLibrary,
    system_prompt,
)
from strata.agent_loop.prompts.summary import SUMMARY_PROMPT
from strata.protocol.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    Reason,
)
from strata.shared.agent_types import AgentType
from strata.tool_execution.builtin.definitions import BUILTIN_TOOLS

KEYS = {
    "memgpt_v2_chat",
    "sleeptime_v2",
    "letta_v1",
    "react",
    "workflow",
    "summary_system_prompt",
    "voice_chat",
    "voice_sleeptime",
    "memgpt_chat",
    "sleeptime_doc_ingest",
    "memgpt_generate_tool",
}
# Tools of single agent types, and arguments of tools, that prompts name in addition to the
# catalogue.
SPECIFIED = {
    "memgpt_v2_chat": {"send_message", "request_heartbeat"},
    "memgpt_chat": {"send_message", "request_heartbeat"},
    "memgpt_generate_tool": {"send_message", "request_heartbeat"},
    "react": {"request_heartbeat"},
    "workflow": {"request_heartbeat"},
    "voice_chat": {"convo_keyword_queries", "start_minutes_ago", "end_minutes_ago"},
    "voice_sleeptime": {
        "store_memories",
        "rethink_user_memory",
        "finish_rethinking_memory",
        "new_memory",
    },
}
BLOCKS = {"human", "persona", "instructions"}
# Names that the prompt of a type must contain, so that its agents act as their loop expects.
MUST_NAME = {
    "memgpt_v2_chat": ["send_message", "request_heartbeat"],
    "memgpt_chat": [
        "send_message",
        "request_heartbeat",
        "under 50 words",
        "conversation_search",
        "core_memory_append",
        "core_memory_replace",
    ],
    "sleeptime_v2": [
        "memory_insert",
        "memory_replace",
        "memory_rethink",
        "memory_finish_edits",
        "Line numbers",
        "read-only",
    ],
    "sleeptime_doc_ingest": ["memory_rethink", "memory_finish_edits", "Line numbers", "read-only"],
    "react": ["request_heartbeat"],
    "workflow": ["request_heartbeat", "If a tool fails, you run again"],
    "voice_chat": ["search_memory", "convo_keyword_queries", "start_minutes_ago"],
    "voice_sleeptime": [
        "start_index",
        "end_index",
        "context",
        "store_memories",
        "rethink_user_memory",
        "finish_rethinking_memory",
        "(Older)",
        "(Newer)",
    ],
    "letta_v1": ["reply without a tool call ends your turn"],
    "memgpt_generate_tool": ["Google style", "sample arguments", "in one line", "NumPy"],
    "summary_system_prompt": ["{limit}"],
}


def write(folder: Path, name: str, data: bytes | str) -> None:
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())


def problem_of(folder: Path, key: str) -> str:
    """Returns the problem of a file; list and error must show the same."""
    library = PromptLibrary(folder)
    [listed] = [prompt for prompt in library.list().prompts if prompt.key == key]
    with pytest.raises(FailedPreconditionError) as raised:
        library.get(key)
    assert raised.value.reason is Reason.PROMPT_UNUSABLE
    assert raised.value.metadata == {"key": key}
    assert listed.problem in raised.value.message
    assert (listed.builtin, listed.text) == (False, "")
    return listed.problem


def test_there_is_one_file_for_each_specified_key() -> None:
    assert set(BUILTIN_DESCRIPTIONS) == KEYS
    folder = Path(library_module.__file__).parent / "builtin"
    assert {file.name for file in folder.iterdir()} == {f"{key}.txt" for key in KEYS}
    assert list(BUILTIN_DESCRIPTIONS) == sorted(BUILTIN_DESCRIPTIONS)


@pytest.mark.parametrize("key", sorted(KEYS))
def test_a_builtin_prompt_is_plain_text_about_strata(key: str) -> None:
    text = system_prompt(key)
    assert text == text.strip()
    assert text.isascii()
    assert "\r" not in text
    assert not re.search("letta|limnal|memgpt", text, re.IGNORECASE)
    assert "Strata" in text or key == "summary_system_prompt"
    # Memory is appended; only the limit of a summary is replaced.
    assert "{CORE_MEMORY}" not in text
    assert set(re.findall(r"\{[a-z_]+\}", text, re.IGNORECASE)) <= {"{limit}"}
    for opening in re.findall(r"^<(\w+)>", text, re.MULTILINE):
        assert text.count(f"<{opening}>") == text.count(f"</{opening}>") == 1


@pytest.mark.parametrize("key", sorted(KEYS))
def test_builtin_prompt_names_only_tools_and_blocks_that_exist(key: str) -> None:
    known = set(BUILTIN_TOOLS) | SPECIFIED.get(key, set()) | BLOCKS
    quoted = {name for name in re.findall(r"`([^`]+)`", system_prompt(key)) if name.isidentifier()}
    assert quoted <= known


@pytest.mark.parametrize("key", sorted(KEYS))
def test_builtin_prompt_names_the_tools_of_its_loop(key: str) -> None:
    for words in MUST_NAME[key]:
        assert words in system_prompt(key)


def test_every_agent_type_has_a_builtin_prompt() -> None:
    keys = {agent_type: AGENT_TYPES[agent_type].prompt_key for agent_type in AgentType}
    for agent_type, key in keys.items():
        assert base_prompt(agent_type) == system_prompt(key)
    assert len(set(keys.values())) == len(AgentType)
    assert system_prompt("summary_system_prompt") == SUMMARY_PROMPT


def test_unknown_builtin_key_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        system_prompt("../base")


def test_file_of_the_folder_is_a_prompt_by_its_name(tmp_path: Path) -> None:
    write(tmp_path, "my-butler_2.txt", "You are a butler.\n{CORE_MEMORY}\nAlways.\n")
    prompt = PromptLibrary(tmp_path).get("my-butler_2")
    assert prompt.text == "You are a butler.\n{CORE_MEMORY}\nAlways."
    assert (prompt.builtin, prompt.description, prompt.problem) == (False, "", "")


def test_new_and_changed_files_are_read_without_a_restart(tmp_path: Path) -> None:
    library = PromptLibrary(tmp_path)
    with pytest.raises(NotFoundError) as raised:
        library.get("butler")
    assert raised.value.reason is Reason.PROMPT_NOT_FOUND
    write(tmp_path, "butler.txt", "One.")
    assert library.get("butler").text == "One."
    write(tmp_path, "butler.txt", "Two.")
    assert library.get("butler").text == "Two."


def test_a_byte_order_mark_and_windows_line_ends_are_removed(tmp_path: Path) -> None:
    write(tmp_path, "butler.txt", b"\xef\xbb\xbfYou are\r\na butler.\r\n\r\n")
    assert PromptLibrary(tmp_path).get("butler").text == "You are\na butler."


@pytest.mark.parametrize(
    "key",
    [
        "",
        ".",
        "..",
        "../secret",
        "a/b",
        "/etc/passwd",
        "a\\b",
        "a.b",
        ".hidden",
        "-a",
        "_a",
        "a b",
        "a\n",
        "a\0",
        "ä",
        "x" * 65,
    ],
)
def test_a_key_that_could_be_a_path_is_refused(tmp_path: Path, key: str) -> None:
    folder = tmp_path / "prompts"
    folder.mkdir()
    write(tmp_path, "secret.txt", "secret")
    with pytest.raises(InvalidArgumentError) as raised:
        PromptLibrary(folder).get(key, field="system_prompt_key")
    assert [violation.field for violation in raised.value.violations] == ["system_prompt_key"]


@given(key=st.text(max_size=80))
def test_any_key_results_in_a_prompt_or_an_error(key: str) -> None:
    library = PromptLibrary(Path(__file__).parent)
    try:
        prompt = library.get(key)
    except (InvalidArgumentError, NotFoundError):
        return
    assert prompt.key == key
    assert prompt.builtin


def test_links_are_followed_within_the_folder_only(tmp_path: Path) -> None:
    folder = tmp_path / "prompts"
    data = folder / "..2026_11_25"
    data.mkdir(parents=True)
    write(data, "butler.txt", "You are a butler.")
    write(tmp_path, "outside.txt", "secret")
    # As Kubernetes mounts a ConfigMap.
    (folder / "..data").symlink_to("..2026_11_25")
    (folder / "butler.txt").symlink_to("..data/butler.txt")
    (folder / "thief.txt").symlink_to("../outside.txt")
    (folder / "gone.txt").symlink_to("..data/gone.txt")
    (folder / "loop.txt").symlink_to("loop.txt")

    assert PromptLibrary(folder).get("butler").text == "You are a butler."
    assert "link to a file outside the folder" in problem_of(folder, "thief")
    assert "cannot be read" in problem_of(folder, "loop")
    with pytest.raises(NotFoundError):
        PromptLibrary(folder).get("gone")
    listed = [prompt.key for prompt in PromptLibrary(folder).list().prompts if not prompt.builtin]
    assert listed == ["butler", "loop", "thief"]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "is empty"),
        (b" \n\t\n", "is empty"),
        (b"ok \xff\xfe", "is not UTF-8: byte 3"),
        ("You are a bütler.".encode("latin-1"), "is not UTF-8"),
        (b"a\0b", "contains NUL"),
        (b"x" * (MAX_PROMPT_CHARS + 1), "is too large: at most 200000 characters"),
        ("\U0001f600".encode() * (MAX_PROMPT_CHARS + 1), "is too large"),
    ],
)
def test_file_that_is_not_a_prompt_is_listed_with_the_reason(
    tmp_path: Path, data: bytes, problem: str
) -> None:
    write(tmp_path, "butler.txt", data)
    assert problem in problem_of(tmp_path, "butler")


def test_a_prompt_of_the_largest_size_is_read_completely(tmp_path: Path) -> None:
    text = "\U0001f600" * MAX_PROMPT_CHARS
    write(tmp_path, "butler.txt", text)
    assert PromptLibrary(tmp_path).get("butler").text == text


def test_folders_and_pipes_are_not_prompts(tmp_path: Path) -> None:
    (tmp_path / "folder.txt").mkdir()
    os.mkfifo(tmp_path / "pipe.txt")
    assert "is not a regular file" in problem_of(tmp_path, "pipe")
    assert "folder.txt" in problem_of(tmp_path, "folder")


def test_a_builtin_prompt_precedes_a_file_with_its_key(tmp_path: Path) -> None:
    write(tmp_path, "letta_v1.txt", "Other.")
    library = PromptLibrary(tmp_path)
    assert library.get("letta_v1").text == system_prompt("letta_v1")
    first, second = [p for p in library.list().prompts if p.key == "letta_v1"]
    assert (first.builtin, first.problem) == (True, "")
    assert (second.builtin, second.problem) == (
        False,
        "A built-in prompt has this key: rename the file.",
    )


def test_list_names_files_with_wrong_names_and_skips_others(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "no key.txt", ".hidden.txt", "notes.md", "txt"):
        write(tmp_path, name, "Text.")
    (tmp_path / os.fsdecode(b"\xff.txt")).write_text("Text.")
    custom = [prompt for prompt in PromptLibrary(tmp_path).list().prompts if not prompt.builtin]
    assert [(prompt.key, bool(prompt.problem)) for prompt in custom] == [
        ("a", False),
        ("b", False),
        ("no key", True),
        ("?", True),
    ]


def test_the_list_of_files_is_bounded_and_the_rest_is_counted(tmp_path: Path) -> None:
    for number in range(MAX_LISTED_FILES + 2):
        write(tmp_path, f"p{number:04}.txt", "Text.")
    listing = PromptLibrary(tmp_path).list()
    assert len(listing.prompts) == len(KEYS) + MAX_LISTED_FILES
    assert listing.more == 2


@pytest.mark.parametrize("folder", [None, Path("/no/such/folder"), Path(__file__)])
def test_without_a_folder_only_the_builtin_prompts_are_listed(folder: Path | None) -> None:
    library = PromptLibrary(folder)
    assert [prompt.key for prompt in library.list().prompts] == sorted(KEYS)
    with pytest.raises(NotFoundError):
        library.get("butler")


def test_every_prompt_has_a_transcript_without_a_failed_command() -> None:
    folder = Path(__file__).parents[3] / "data" / "transcripts"
    transcripts = {file.stem: file.read_text("utf-8") for file in folder.glob("*.md")}
    assert transcripts.keys() == BUILTIN_DESCRIPTIONS.keys()
    for key, text in transcripts.items():
        assert text.startswith(f"# {key}\n"), key
        assert "(exit code" not in text, key

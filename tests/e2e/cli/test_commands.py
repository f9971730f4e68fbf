"""Commands with a gateway: text and JSON output, and exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from child_processes import SOURCE_PATH
from command_line import Run
from e2e.cli.scripted import ScriptedGateway
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.common.v1 import message_pb2
from strata.api.gateway.v1 import run_service_pb2
from strata.api.tool_execution.v1 import tool_service_pb2 as tool_pb
from strata.protocol.errors import (
    FieldViolation,
    InvalidArgumentError,
    PermissionDeniedError,
    UnavailableError,
    UnimplementedError,
)
from strata.shared.ids import new_id


@pytest.fixture
def ann(gateway: ScriptedGateway) -> Any:
    return gateway.agents.add("ann")


async def test_status_prints_version_agents_and_services(strata: Run, ann: Any) -> None:
    done = await strata("status")
    assert done.code == 0, done
    assert "version: 9.9.9" in done.out
    assert "agents: 1" in done.out
    assert "recall\tanswers" in done.out
    assert "tool_runner\tanswers" in done.out


async def test_status_fails_when_a_service_is_silent(
    strata: Run, gateway: ScriptedGateway, ann: Any
) -> None:
    gateway.tools.failure = UnavailableError("The service behind this method cannot be reached.")
    done = await strata("status", "--json")
    assert done.code == 1
    report = json.loads(done.out)
    assert report["services"]["recall"] == "answers"
    assert report["services"]["tool_execution"].startswith("does not answer")


async def test_status_fails_when_the_tool_runner_is_silent(
    strata: Run, gateway: ScriptedGateway, ann: Any
) -> None:
    gateway.tools.runner_failure = UnavailableError("The tool runner cannot be reached.")
    done = await strata("status", "--json")
    assert done.code == 1
    services = json.loads(done.out)["services"]
    assert services["tool_execution"] == "answers"
    assert services["tool_runner"].startswith("does not answer")


async def test_unreachable_gateway_is_exit_code_three(
    strata: Run, gateway: ScriptedGateway
) -> None:
    await gateway.stop()
    done = await strata("agents", "list")
    assert done.code == 3
    assert f"No gateway answers at {gateway.address}." in done.err
    assert "strata up" in done.err
    assert done.out == ""


async def test_wrong_key_is_reported(strata: Run) -> None:
    done = await strata("agents", "list", "--api-key", "wrong")
    assert done.code == 1
    assert "The API key is not valid. [CREDENTIALS_INVALID]" in done.err


async def test_agents_are_listed_for_people_and_programs(
    strata: Run, gateway: ScriptedGateway, ann: Any
) -> None:
    bert = gateway.agents.add("bert\x1b[31m")
    plain = await strata("agents", "list")
    header, *rows = plain.out.splitlines()
    assert header.split("\t")[:2] == ["NAME", "ID"]
    assert [row.split("\t")[:2] for row in rows] == [["ann", ann.id], ["bert[31m", bert.id]]
    document = json.loads((await strata("agents", "list", "--json")).out)
    assert [listed_agent["id"] for listed_agent in document["agents"]] == [ann.id, bert.id]


async def test_an_empty_list_is_an_empty_list_in_json(strata: Run) -> None:
    document = json.loads((await strata("agents", "list", "--json")).out)
    assert document == {"agents": [], "nextPageToken": ""}


async def test_an_agent_is_shown_by_name_and_by_id(strata: Run, ann: Any) -> None:
    by_name = await strata("agents", "show", "ann", "--json")
    by_id = await strata("agents", "show", ann.id, "--json")
    assert json.loads(by_name.out)["id"] == ann.id
    assert by_name == by_id
    assert f"id: {ann.id}" in (await strata("agents", "show", "ann")).out


async def test_an_unknown_agent_is_not_found(strata: Run) -> None:
    done = await strata("agents", "show", "nobody")
    assert done.code == 1
    assert 'There is no agent "nobody".' in done.err
    assert "[AGENT_NOT_FOUND]" in done.err


@pytest.mark.parametrize("command", [["agents", "show"], ["chat", "ann", "--message"]])
async def test_argument_that_is_not_utf_8_is_wrong_usage(
    strata: Run, ann: Any, command: list[str]
) -> None:
    outcome = await strata(*command, os.fsdecode(b"caf\xe9"))
    assert outcome.code == 2
    assert outcome.err.startswith("Error: An argument, a line or the name of a file has bytes")


@pytest.mark.parametrize(
    "command", ["agents list", "--help", "agents --help", "agents", "--version"]
)
@pytest.mark.parametrize(("stdout", "code"), [("/dev/full", 1), (None, 0)])
async def test_output_that_cannot_be_written_is_one_readable_line(
    environment: None, stdout: str | None, code: int, command: str
) -> None:
    to = ">&-" if stdout is None else f"> {stdout}"
    shell = f"exec {shlex.quote(sys.executable)} -m strata.cli.main {command} {to}"
    process = await asyncio.create_subprocess_shell(
        shell,
        env={**os.environ, "PYTHONPATH": SOURCE_PATH},
        stderr=asyncio.subprocess.PIPE,
    )
    _, err = await process.communicate()
    assert process.returncode == code
    expected = b"Error: The output cannot be written: No space left on device.\n"
    assert err == (expected if code else b"")


async def test_chat_with_closed_standard_input_ends_like_one_without_input(
    environment: None, ann: Any
) -> None:
    results = []
    for source in ("<&-", "</dev/null"):
        process = await asyncio.create_subprocess_shell(
            f"exec {shlex.quote(sys.executable)} -m strata.cli.main chat ann {source}",
            env={**os.environ, "PYTHONPATH": SOURCE_PATH},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        results.append((await process.communicate(), process.returncode))
    assert results[0] == results[1]
    assert results[0][1] == 0


async def test_wrong_fields_are_listed(strata: Run, gateway: ScriptedGateway) -> None:
    gateway.agents.failure = InvalidArgumentError(
        "The request is wrong.",
        violations=[FieldViolation("timezone", "is not an IANA timezone")],
    )
    done = await strata("agents", "create", "carl", "--timezone", "Moon")
    assert done.code == 1
    assert "The request is wrong. [INVALID_FIELD]" in done.err
    assert "timezone: is not an IANA timezone" in done.err


async def test_an_agent_is_created_with_the_type_named(
    strata: Run, gateway: ScriptedGateway
) -> None:
    done = await strata("agents", "create", "carl", "--type", "react_agent")
    assert done.code == 0, done
    done = await strata("agents", "create", "dora")
    assert done.code == 0, done
    assert {agent.name: agent.type for agent in gateway.agents.agents} == {
        "carl": agent_pb.AGENT_TYPE_REACT,
        "dora": agent_pb.AGENT_TYPE_LETTA_V1,
    }


async def test_an_unknown_type_is_refused_with_the_list_of_types(strata: Run) -> None:
    done = await strata("agents", "create", "carl", "--type", "split_thread_agent")
    assert done.code != 0
    assert "letta_v1_agent" in done.err


async def test_another_model_keeps_the_rest_of_its_configuration(
    strata: Run, gateway: ScriptedGateway, ann: Any
) -> None:
    done = await strata("agents", "update", "ann", "--model", "far/big", "--json")
    assert done.code == 0, done
    agent = json.loads(done.out)
    assert agent["model"]["handle"] == "far/big"
    assert agent["model"]["maxOutputTokens"] == 99
    assert agent["revision"] == "2"


@pytest.mark.parametrize("option", ["--tool", "--add-tool"])
async def test_a_tool_is_added_to_the_present_ones(strata: Run, ann: Any, option: str) -> None:
    ann.tools.extend(["memory_insert", "conversation_search"])
    done = await strata("agents", "update", "ann", option, "pay", option, "memory_insert")
    assert done.code == 0, done.err
    assert list(ann.tools) == ["memory_insert", "conversation_search", "pay"]


async def test_tools_and_tags_can_be_added_removed_and_replaced(strata: Run, ann: Any) -> None:
    ann.tools.extend(["a", "b"])
    ann.tags.extend(["x", "y"])
    done = await strata(
        *("agents", "update", "ann", "--remove-tool", "a", "--add-tag", "z", "--remove-tag", "x")
    )
    assert done.code == 0, done.err
    assert (list(ann.tools), list(ann.tags)) == (["b"], ["y", "z"])
    done = await strata("agents", "update", "ann", "--tools", "c, d,c", "--tags", "")
    assert done.code == 0, done.err
    assert (list(ann.tools), list(ann.tags)) == (["c", "d"], [])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--remove-tool", "z"), "no tool z to remove; present: a, b"),
        (("--tools", "a", "--add-tool", "b"), "--tools is the whole list"),
        (("--add-tag", "x", "--remove-tag", "x"), "Both added and removed: x"),
    ],
)
async def test_an_impossible_change_of_a_list_is_wrong_usage(
    strata: Run, ann: Any, options: tuple[str, ...], says: str
) -> None:
    ann.tools.extend(["a", "b"])
    done = await strata("agents", "update", "ann", *options)
    assert done.code == 2
    assert says in " ".join(done.err.split())
    assert list(ann.tools) == ["a", "b"]


async def test_update_without_changes_is_wrong_usage(strata: Run, ann: Any) -> None:
    assert (await strata("agents", "update", "ann")).code == 2


async def test_delete_needs_confirmation(strata: Run, gateway: ScriptedGateway, ann: Any) -> None:
    refused = await strata("agents", "delete", "ann")
    assert refused.code == 2
    assert gateway.agents.deleted == []
    assert (await strata("agents", "delete", "ann", "--yes")).code == 0
    assert gateway.agents.deleted == [ann.id]


async def test_the_context_window_is_explained(strata: Run, ann: Any) -> None:
    done = await strata("agents", "context", "ann")
    assert "blocks\t120\t480" in done.out
    assert "250 of 1,000 tokens (25%)" in done.err
    assert (await strata("agents", "context", "ann", "--prompt")).out == "You remember.\n"


async def test_usage_is_listed_over_time(strata: Run, ann: Any) -> None:
    done = await strata("usage", "--by", "week", "--since", "2026-07-01T12:00:00Z")
    assert done.out.splitlines()[0].startswith("FROM\tRUNS\tMODEL CALLS\tTOKENS SENT")
    assert "\t2\t0\t604,800\t" in done.out
    for wrong in (["--by", "month"], ["--by", "day", "--all"]):
        assert (await strata("usage", *wrong)).code == 2


async def test_the_next_compaction_is_previewed(
    strata: Run, gateway: ScriptedGateway, ann: Any
) -> None:
    leaving = agent_pb.PreviewedMessage(
        message_id="message-1",
        role=message_pb2.ROLE_USER,
        outcome=agent_pb.COMPACTION_OUTCOME_SUMMARIZED,
        tokens=1234,
        excerpt="Hello\x1b[31m\nthere",
    )
    pinned = agent_pb.PreviewedMessage(
        message_id="message-2",
        role=message_pb2.ROLE_ASSISTANT,
        outcome=agent_pb.COMPACTION_OUTCOME_KEPT,
        pinned=True,
    )
    gateway.agents.preview = agent_pb.PreviewCompactionResponse(
        messages=[leaving, pinned],
        kept=agent_pb.PreviewedSum(message_count=2, tokens=9),
        summarized=agent_pb.PreviewedSum(message_count=1, tokens=1234),
        tokens_before=2000,
        tokens_kept=766,
    )
    done = await strata("agents", "context", "ann", "--compaction")
    assert "summarized\tuser\t1,234\tHello[31m there\tmessage-1" in done.out
    assert "kept, pinned\tassistant\t0\t\tmessage-2" in done.out
    assert "2 of 3 messages are listed" in done.err
    assert "1 messages with 1,234 tokens" in done.err
    gateway.agents.compaction_due = True
    await strata("agents", "context", "ann", "--compaction")
    gateway.agents.preview = agent_pb.PreviewCompactionResponse(
        obstacle=agent_pb.COMPACTION_OBSTACLE_OLDER_MESSAGES_PINNED
    )
    nothing = await strata("agents", "compact", "ann", "--preview", "--mode", "all")
    assert "Nothing would be removed: older messages pinned." in nothing.err
    on_request, in_turn, with_mode = gateway.agents.previews
    assert on_request.trigger == agent_pb.COMPACTION_TRIGGER_REQUEST
    assert in_turn.trigger == agent_pb.COMPACTION_TRIGGER_NEXT_TURN
    assert (with_mode.agent_id, with_mode.compaction.mode) == (ann.id, "all")


async def test_a_block_is_printed_exactly_as_stored(
    strata: Run, gateway: ScriptedGateway, ann: Any
) -> None:
    assert (await strata("memory", "show", "ann", "human")).out == "Name: Ann\nCity: Rome\n"
    whole = await strata("memory", "show", "ann")
    assert "human  20 of 500 characters, revision 3" in whole.out
    prompt = await strata("memory", "show", "ann", "--prompt")
    assert prompt.out == "<human>Name: Ann\nCity: Rome</human>\n"
    missing = await strata("memory", "show", "ann", "other")
    assert missing.code == 1
    assert "[BLOCK_NOT_FOUND]" in missing.err


async def test_an_edit_shows_its_diff(strata: Run, gateway: ScriptedGateway, ann: Any) -> None:
    done = await strata("memory", "edit", "ann", "human", "--value", "Name: Ann\nCity: Oslo")
    assert done.code == 0, done
    assert done.out.splitlines() == [
        "- City: Rome",
        "+ City: Oslo",
        "human is now at revision 4.",
    ]
    assert gateway.blocks.block.value == "Name: Ann\nCity: Oslo"


async def test_edit_without_changes_does_not_write(
    strata: Run, gateway: ScriptedGateway, ann: Any
) -> None:
    value = gateway.blocks.block.value
    done = await strata("memory", "edit", "ann", "human", "--file", "-", typed=value)
    assert done.out == "Nothing changed.\n"
    assert gateway.blocks.block.revision == 3


async def test_a_concurrent_edit_is_not_overwritten(
    strata: Run,
    gateway: ScriptedGateway,
    ann: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def agent_edits() -> None:
        gateway.blocks.block.value = "the agent's"
        gateway.blocks.block.revision += 1

    gateway.blocks.before_update = agent_edits
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    done = await strata("memory", "edit", "ann", "human", "--file", "-", typed="Name: Ann\nmine")
    assert done.code == 1
    assert "[EDIT_CONFLICT]" in done.err
    both = done.err.index("Changed by others:\n"), done.err.index("Changed by you:\n- City: Rome")
    assert both == tuple(sorted(both))
    assert "+ the agent's\n" in done.err
    kept = [file.read_text() for file in tmp_path.glob("strata-memory-*")]  # noqa: ASYNC240
    assert kept == ["Name: Ann\nmine"]
    assert gateway.blocks.block.value == "the agent's"


async def test_messages_are_searched_and_cannot_steer_the_terminal(strata: Run, ann: Any) -> None:
    done = await strata("recall", "search", "ann", "Rome")
    assert "user\tI live in Rome.[2J\t" in done.out
    assert "\x1b" not in done.out
    document = json.loads((await strata("recall", "search", "ann", "Rome", "--json")).out)
    assert document["hits"][0]["message"]["parts"][0]["text"]["text"] == "I live in Rome.\x1b[2J"
    assert "I live in Rome" in (await strata("recall", "list", "ann")).out


async def test_passages_are_stored_listed_and_searched(
    strata: Run, gateway: ScriptedGateway, ann: Any
) -> None:
    stored = await strata(
        "archival", "insert", "ann", "Olives\tkeep.", "--tag", "food", "--tag", "a"
    )
    assert stored.code == 0, stored
    [passage] = gateway.passages.passages
    assert passage.id in stored.out
    assert list(passage.tags) == ["food", "a"]
    listed = await strata("archival", "list", "ann")
    assert listed.out.splitlines()[1].split("\t")[:2] == ["Olives keep.", "food, a"]
    done = await strata(
        "archival", "search", "ann", "olives", "--tag", "food", "--all-tags", "-n", "3", "--json"
    )
    assert json.loads(done.out)["hits"][0]["passage"]["id"] == passage.id
    [request] = gateway.passages.searched
    assert (list(request.tags), request.tag_match_mode, request.top_k) == (["food"], 2, 3)
    explained = await strata("archival", "search", "ann", "olives last March", "--explain")
    assert "Found by its words at rank 1." in explained.out
    assert "tags excludes 2, best passage-other." in explained.err
    assert "'last March': texts from the beginning to now are ranked higher." in explained.err
    assert "Ann's\t7" in (await strata("archival", "list")).out


async def test_models_are_listed_with_the_endpoints_that_are_down(strata: Run) -> None:
    done = await strata("models")
    assert "local/tiny\tyes\t8,192" in done.out
    assert "far does not answer: connection refused" in done.err


async def test_a_model_key_is_read_and_never_printed(
    strata: Run, gateway: ScriptedGateway, ann: Any
) -> None:
    for_all = await strata("models", "key", "set", "openai", typed=" sk-of-all \nmore\n")
    for_ann = await strata("models", "key", "set", "openai", "--agent", "ann", typed="sk-of-ann")
    gone = await strata("models", "key", "delete", "openai", "--agent", ann.id)

    assert [done.code for done in (for_all, for_ann, gone)] == [0, 0, 0]
    assert [(key.provider, key.api_key, key.agent_id) for key in gateway.models.keys] == [
        ("openai", "sk-of-all", ""),
        ("openai", "sk-of-ann", ann.id),
        ("openai", "", ann.id),
    ]
    for done in (for_all, for_ann, gone):
        assert "sk-of" not in done.out + done.err
    assert "stored for ann" in for_ann.err


async def test_a_missing_key_deletes_nothing(strata: Run, gateway: ScriptedGateway) -> None:
    done = await strata("models", "key", "set", "openai", typed="\n")
    assert done.code == 2
    assert "There is no key" in done.err
    assert gateway.models.keys == []


async def test_a_key_that_is_a_json_file_is_sent_unchanged(
    strata: Run, gateway: ScriptedGateway
) -> None:
    file = '{\n  "type": "service_account",\n  "private_key": "sk-of-file"\n}\n'
    done = await strata("models", "key", "set", "vertex", typed=file)
    assert (done.code, [key.api_key for key in gateway.models.keys]) == (0, [file.strip()])
    assert "sk-of" not in done.out + done.err


async def test_runs_are_read_over_several_pages(strata: Run, gateway: ScriptedGateway) -> None:
    gateway.runs.runs = [
        run_service_pb2.Run(id=new_id("run"), state=run_service_pb2.RUN_STATE_COMPLETED)
        for _ in range(5)
    ]
    everything = json.loads((await strata("runs", "list", "--json")).out)
    assert [run["id"] for run in everything["runs"]] == [run.id for run in gateway.runs.runs]
    some = await strata("runs", "list", "-n", "3")
    assert len(some.out.splitlines()) == 1 + 3
    assert "raise --limit" in some.err
    gateway.runs.runs[0].parent_run_id = "run-0"
    shown = await strata("runs", "show", gateway.runs.runs[0].id)
    assert "state: completed" in shown.out
    assert "asked by run: run-0" in shown.out
    cancelled = await strata("runs", "cancel", gateway.runs.runs[0].id)
    assert "state: cancelling" in cancelled.out
    assert gateway.runs.cancelled == [gateway.runs.runs[0].id]


async def test_doctor_sees_a_running_gateway(
    strata: Run, gateway: ScriptedGateway, open_folder: Path
) -> None:
    data = str(open_folder / "data")
    done = await strata("doctor", "--data", data, "--address", gateway.address, "--json")
    findings = {finding["check"]: finding for finding in json.loads(done.out)}
    assert findings["python"]["verdict"] == "ok"
    assert findings["postgresql"]["verdict"] == "ok", findings
    assert findings["gateway"]["verdict"] == "ok", findings
    assert findings["services"]["verdict"] == "ok"
    assert findings["python"]["text"] == ".".join(map(str, sys.version_info[:3]))
    assert done.code == 0


async def test_doctor_names_the_service_that_is_silent(
    strata: Run, gateway: ScriptedGateway, open_folder: Path
) -> None:
    gateway.tools.failure = UnavailableError("The service behind this method cannot be reached.")
    done = await strata("doctor", "--data", str(open_folder / "data"), "--address", gateway.address)
    assert done.code == 1
    assert "fail  service tool_execution:" in done.out


@pytest.mark.parametrize(
    ("isolation", "status", "verdict", "text"),
    [
        ("namespaces", message_pb2.TOOL_STATUS_OK, "ok", "in the isolation namespaces"),
        ("landlock", message_pb2.TOOL_STATUS_OK, "warn", "in the isolation landlock"),
        ("none", message_pb2.TOOL_STATUS_FAILED, "warn", "no namespaces"),
        (PermissionDeniedError("No."), 0, "warn", "not checked"),
        (UnimplementedError("No sandbox here."), 0, "warn", "No sandbox here."),
        (UnavailableError("Gone."), 0, "fail", "Gone."),
    ],
)
async def test_doctor_prints_the_sandbox_of_tools(
    strata: Run,
    gateway: ScriptedGateway,
    open_folder: Path,
    isolation: Any,
    status: message_pb2.ToolStatus.ValueType,
    verdict: str,
    text: str,
) -> None:
    gateway.tools.ran = isolation
    if isinstance(isolation, str):
        content = json.dumps({"message": "no namespaces"})
        returned = message_pb2.ToolReturnPart(status=status, content=content)
        gateway.tools.ran = tool_pb.RunToolResponse(tool_return=returned, isolation=isolation)
    data = str(open_folder / "data")
    done = await strata("doctor", "--data", data, "--address", gateway.address, "--json")
    [sandbox] = [finding for finding in json.loads(done.out) if finding["check"] == "sandbox"]
    assert sandbox["verdict"] == verdict
    assert text in sandbox["text"]
    assert bool(sandbox["remedy"]) is (verdict != "ok" and "checked" not in text)
    assert done.code == (verdict == "fail")


async def test_doctor_works_without_a_running_gateway(strata: Run, open_folder: Path) -> None:
    data = open_folder / "data"
    (data / "secrets").mkdir(parents=True)
    (data / "secrets").chmod(0o700)
    (data / "secrets" / "api-key").write_text("none")
    (data / "secrets" / "api-key").chmod(0o644)
    done = await strata("doctor", "--data", str(data), "--json")
    findings = {finding["check"]: finding for finding in json.loads(done.out)}
    assert findings["data folder"]["verdict"] == "fail"
    assert "chmod" in findings["data folder"]["remedy"]
    assert findings["gateway"]["verdict"] == "warn"
    assert findings["gateway"]["remedy"] == f"Start it with: strata up --data {data}"
    assert findings["chat model"]["text"]
    assert findings["sandbox"]["text"]
    assert findings["schemas"]["verdict"] == "ok"
    assert done.code == 1


async def test_models_are_listed_with_and_without_the_verb(strata: Run) -> None:
    assert (await strata("models", "list", "--json")).out == (await strata("models", "--json")).out
    assert "local/tiny" in (await strata("models", "list")).out


async def test_a_model_whose_provider_does_not_answer_causes_a_warning(
    strata: Run, ann: Any
) -> None:
    for command in (("create", "bea"), ("update", "ann")):
        done = await strata("agents", *command, "--model", "far/any")
        assert done.code == 0
        assert "far does not answer" in " ".join(done.err.split())
    done = await strata("agents", "update", "ann", "--model", "local/tiny")
    assert "Warning" not in done.err


@pytest.mark.parametrize(
    "command",
    [
        ("recall", "search", "ann", ""),
        ("archival", "search", "ann", " "),
        ("files", "search", "ann", ""),
        ("tools", "search", ""),
    ],
)
async def test_a_blank_query_is_wrong_usage(strata: Run, ann: Any, command: Any) -> None:
    done = await strata(*command)
    assert done.code == 2
    assert "the query is blank" in done.err


@pytest.mark.parametrize("command", [(), ("agents",), ("mcp", "servers"), ("models", "key")])
async def test_a_command_without_a_verb_prints_its_help(strata: Run, command: Any) -> None:
    done = await strata(*command)
    assert done.code == 0
    assert "Usage: " in done.out
    assert done.err == ""


async def test_a_message_and_a_passage_are_shown_whole(
    strata: Run, gateway: ScriptedGateway, ann: Any
) -> None:
    done = await strata("recall", "show", gateway.messages.message.id)
    assert done.code == 0, done.err
    assert "I live in Rome." in done.out
    assert "\x1b" not in done.out
    await strata("archival", "insert", "ann", "Olives keep. " * 40, "--tag", "food")
    [passage] = gateway.passages.passages
    done = await strata("archival", "show", passage.id)
    assert done.code == 0, done.err
    assert "tags: food" in done.out
    assert passage.text.strip() in done.out

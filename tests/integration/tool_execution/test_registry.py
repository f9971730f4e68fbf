"""A project's own tools: made through the API, run in the sandbox, used by an agent."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from doubles.script import Call, Reply, say
from inner_services import InnerServices
from integration.tool_execution.conftest import Tools
from integration.tool_execution.registry_calls import result_of, run, upsert
from strata.api.common.v1 import message_pb2, tool_pb2
from strata.api.tool_execution.v1 import tool_service_pb2 as pb
from strata.protocol.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    Reason,
)
from strata.shared.context import current_project
from strata.shared.json_schemas import read_schema
from strata.shared.sandbox import Isolation
from strata.shared.scopes import DEFAULT_SCOPES, Scope
from strata.tool_execution.builtin.definitions import BUILTIN_TOOLS
from thread_records import record_threads

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def dry_run(registry: Any, source: str, **arguments: Any) -> tuple[bool, Any]:
    request = pb.RunToolRequest(source_code=source, arguments_json=json.dumps(arguments))
    return result_of(await registry.RunTool(request))


async def test_state_of_the_tool_runner_is_read(registry: Any) -> None:
    response = await registry.GetToolRunner(pb.GetToolRunnerRequest())
    # The sandbox may have been started by another test.
    assert response.isolation in {level.label for level in Isolation}


async def test_a_tool_is_made_from_its_source(registry: Any) -> None:
    tool = await upsert(registry, tags=["sky", "outside"], enable_parallel_execution=True)
    assert (tool.name, tool.description) == ("weather", "Tells the weather of a town.")
    assert tool.type == tool_pb2.TOOL_TYPE_CUSTOM
    assert (tool.return_char_limit, list(tool.tags)) == (50_000, ["outside", "sky"])
    assert tool.HasField("create_time")
    properties = json.loads(tool.parameters_json)["properties"]
    assert properties["unit"] == {
        "type": "string",
        "enum": ["c", "k"],
        "description": "In which unit.",
    }
    for key in ({"tool_id": tool.id}, {"name": "weather"}):
        assert (await registry.GetTool(pb.GetToolRequest(**key))).tool == tool
    assert await upsert(registry, tags=["outside", "sky"], enable_parallel_execution=True) == tool
    changed = await upsert(registry)
    assert changed.id == tool.id
    assert changed.version != tool.version


async def test_a_repeated_request_gets_the_first_answer(registry: Any) -> None:
    first = await upsert(registry, request_id="r1")
    await upsert(registry, description="Newer.")
    assert await upsert(registry, request_id="r1") == first
    with pytest.raises(AlreadyExistsError) as caught:
        await upsert(registry, request_id="r1", description="Another.")
    assert caught.value.reason is Reason.REQUEST_ID_REUSED
    now = await registry.GetTool(pb.GetToolRequest(name="weather"))
    assert now.tool.description == "Newer."


@pytest.mark.parametrize(
    ("fields", "field", "problem"),
    [
        ({"source": "def f(x):\n  'Does.'"}, "source_code", "line 1, parameter 'x'"),
        ({"source": "x = 1"}, "source_code", "no public function"),
        ({"source": ""}, "source_code", "Python"),
        ({"source": "def f(): ..."}, "description", "docstring"),
        ({"source": "def " + "f" * 49 + "(): 'Does.'"}, "name", "48"),
        ({"name": "two words"}, "name", "letters"),
        ({"return_char_limit": -1}, "return_char_limit", "0 to"),
        ({"tags": ["a", ""]}, "tags[1]", "characters"),
        ({"secret_names": ["1A"]}, "secret_names[0]", "digit"),
        ({"secret_names": ["PATH"]}, "secret_names[0]", "sandbox"),
        ({"pip_requirements": ["not a requirement !"]}, "pip_requirements[0]", "requirement"),
        (
            {"pip_requirements": ["a @ https://x.org/a.whl"]},
            "pip_requirements[0]",
            "contains a URL",
        ),
        ({"pip_requirements": ["A_b>1", "a-B"]}, "pip_requirements", "twice"),
        ({"parameters_json": "{"}, "parameters_json", "JSON"),
        (
            {"parameters_json": '{"properties": {"x": {}}}'},
            "parameters_json",
            "names 'x', which the function weather does not take",
        ),
        (
            {"parameters_json": '{"properties": {"town": {}}}'},
            "parameters_json",
            "must require 'town', as the function weather does",
        ),
        (
            {"parameters_json": '{"properties": {"town": {"$ref": "http://169.254.169.254/"}}}'},
            "parameters_json",
            "$defs",
        ),
        (
            {"parameters_json": '{"properties": {"town": {"type": "x"}}, "required": ["town"]}'},
            "parameters_json",
            "not a JSON schema",
        ),
        (
            {"parameters_json": '{"properties": {"town": {"pattern": "(a*)*b"}}}'},
            "parameters_json",
            "'pattern'",
        ),
        ({"type": tool_pb2.TOOL_TYPE_MCP}, "type", "CUSTOM or CLIENT"),
        ({"type": tool_pb2.TOOL_TYPE_CLIENT, "secret_names": ["A"]}, "secret_names", "client"),
        ({"request_id": "ü"}, "request_id", "ASCII"),
    ],
)
async def test_invalid_fields_are_named(
    registry: Any, fields: dict[str, Any], field: str, problem: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        await upsert(registry, **fields)
    assert caught.value.reason is Reason.INVALID_FIELD
    problems = {violation.field: violation.description for violation in caught.value.violations}
    assert problem in problems[field]
    with pytest.raises(NotFoundError):
        await registry.GetTool(pb.GetToolRequest(name="weather"))


@pytest.mark.parametrize("name", ["memory_insert", "send_message", "store_memories"])
async def test_names_of_built_in_tools_cannot_be_used(registry: Any, name: str) -> None:
    with pytest.raises(AlreadyExistsError) as caught:
        await upsert(registry, name=name)
    assert caught.value.reason is Reason.NAME_TAKEN


async def test_own_and_built_in_tools_are_listed_together(registry: Any) -> None:
    for name in ("zz", "aa", "conversation_of_mine"):
        await upsert(registry, name=name)
    names, token = [], ""
    while True:
        request = pb.ListToolsRequest(page_size=4, page_token=token)
        page = await registry.ListTools(request)
        assert len(page.tools) <= 4
        names += [tool.name for tool in page.tools]
        token = page.next_page_token
        if not token:
            break
    assert names == sorted({*BUILTIN_TOOLS, "zz", "aa", "conversation_of_mine"})
    custom = await registry.ListTools(pb.ListToolsRequest(types=[tool_pb2.TOOL_TYPE_CUSTOM]))
    assert [tool.name for tool in custom.tools] == ["aa", "conversation_of_mine", "zz"]
    mcp = await registry.ListTools(pb.ListToolsRequest(types=[tool_pb2.TOOL_TYPE_MCP]))
    assert list(mcp.tools) == []


async def test_a_deleted_tool_cannot_be_read_and_built_in_tools_cannot_be_deleted(
    registry: Any,
) -> None:
    tool = await upsert(registry)
    await registry.DeleteTool(pb.DeleteToolRequest(tool_id=tool.id))
    with pytest.raises(NotFoundError) as caught:
        await registry.DeleteTool(pb.DeleteToolRequest(tool_id=tool.id))
    assert caught.value.reason is Reason.TOOL_NOT_FOUND
    builtin = BUILTIN_TOOLS["memory_insert"].id
    with pytest.raises(InvalidArgumentError):
        await registry.DeleteTool(pb.DeleteToolRequest(tool_id=builtin))


async def test_tools_are_found_by_words_and_by_meaning(registry: Any) -> None:
    await upsert(registry)
    await upsert(registry, "def send_invoice(customer: str):\n  'Bills a customer.'")

    async def names_for(query: str, limit: int = 3) -> list[str]:
        request = pb.SearchToolsRequest(query=query, limit=limit)
        hits = (await registry.SearchTools(request)).hits
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        return [hit.tool.name for hit in hits]

    assert (await names_for("will it rain tomorrow or be sunny?"))[0] == "weather"
    assert (await names_for("invoice"))[0] == "send_invoice"
    assert (await names_for("make somebody pay for what they bought"))[0] == "send_invoice"
    assert len(await names_for("memory", 2)) == 2
    [hit] = (await registry.SearchTools(pb.SearchToolsRequest(query="invoice", limit=1))).hits
    got = await registry.GetTool(pb.GetToolRequest(name="send_invoice"))
    assert hit.tool == got.tool
    # A changed description is found by its new text.
    await upsert(registry, "def send_invoice(customer: str):\n  'Feeds the penguins.'")
    assert (await names_for("birds of the antarctic"))[0] == "send_invoice"
    with pytest.raises(InvalidArgumentError):
        await names_for(" ")


async def test_found_tools_with_long_sources_fit_into_a_message(registry: Any) -> None:
    filler = "#" * 99_000
    for number in range(25):
        await upsert(registry, f"def whale_{number}(song: str):\n  'Sings.'\n{filler}\n")
    response = await registry.SearchTools(pb.SearchToolsRequest(query="whale", limit=50))
    assert 15 < len(response.hits) < 25
    assert all(filler in hit.tool.source_code for hit in response.hits)


async def test_a_tool_gets_arguments_of_its_annotated_types(registry: Any, tools: Tools) -> None:
    tool = await upsert(registry)
    finished = await run(tools, "weather", town={"name": "Graz"}, unit="k")
    assert result_of(finished) == (True, {"town": "Graz/AT", "unit": "KELVIN"})
    assert finished.tool_return.provenance == message_pb2.PROVENANCE_TOOL
    request = pb.RunToolRequest(tool_id=tool.id, arguments_json='{"town": {"name": "Graz"}}')
    ran = await registry.RunTool(request)
    assert result_of(ran) == (True, {"town": "Graz/AT", "unit": "CELSIUS"})
    assert ran.isolation in {"namespaces", "landlock"}


async def test_a_failed_tool_returns_its_error_to_the_model(registry: Any, tools: Tools) -> None:
    await upsert(registry)
    finished = await run(tools, "weather", town={"name": "Nowhere"})
    assert result_of(finished) == (False, "Error executing function weather: ValueError: boom now")
    finished = await run(tools, "weather", town={"name": "Graz", "x": 1})
    assert result_of(finished)[1].startswith("Invalid arguments for weather: unknown 'x'")
    finished = await run(tools, "weather")
    assert result_of(finished) == (False, "Invalid arguments for weather: missing 'town'.")
    assert (await dry_run(registry, "def f(): return {1, 2}"))[0] is False
    ok, value = await dry_run(registry, "import sys\ndef f(): sys.exit(3)")
    assert not ok
    assert "SystemExit" in value


PRINTING = """
import os
import sys

def report(fails: bool) -> int:
    '''Prints what it does.'''
    print("first\\nsecond", os.environ["API_KEY"], "\\0")
    print("careful", file=sys.stderr)
    print("x" * 10_000, file=sys.stderr)
    return 1 // (not fails)
"""


@pytest.mark.parametrize("fails", [False, True], ids=["returns", "fails"])
async def test_printed_lines_are_returned_beside_what_the_model_sees(
    registry: Any, tools: Tools, fails: bool
) -> None:
    await registry.PutSecret(pb.PutSecretRequest(name="API_KEY", value="sk-one-two"))
    tool = await upsert(registry, PRINTING, secret_names=["API_KEY"])
    request = pb.RunToolRequest(tool_id=tool.id, arguments_json=json.dumps({"fails": fails}))
    for response in (
        await registry.RunTool(request),
        await run(tools, "report", fails=fails),
    ):
        assert result_of(response)[0] is not fails
        returned = response.tool_return
        assert returned.stdout[0] == "first"
        assert returned.stdout[1].startswith("second ")
        assert "sk-one-two" not in returned.stdout[1]
        assert "\0" not in returned.stdout[1]
        assert returned.stderr[0] == "careful"
        assert "characters left out" in "".join(returned.stderr)
        assert sum(map(len, returned.stderr)) < 5_000
        assert "second" not in returned.content


async def test_a_run_stopped_by_a_limit_is_a_response_that_names_the_limit(registry: Any) -> None:
    async def dry(source: str, **options: Any) -> pb.RunToolResponse:
        answer: pb.RunToolResponse = await registry.RunTool(
            pb.RunToolRequest(source_code=source), **options
        )
        return answer

    # Its own time limit is longer than the caller's wait.
    slow = await dry("import time\ndef f(): time.sleep(60)", timeout=5)
    assert slow.end == pb.RUN_TOOL_END_TIMEOUT
    assert slow.tool_return.status == message_pb2.TOOL_STATUS_FAILED
    assert re.search(r"did not end within \d(\.\d+)? seconds", slow.tool_return.content)
    large = await dry("def f(): return len(bytearray(10 ** 10))")
    assert large.end == pb.RUN_TOOL_END_MEMORY
    assert "1024 MiB" in large.tool_return.content
    assert (await dry("def f(): return {1}")).end == pb.RUN_TOOL_END_BAD_RESULT
    assert (await dry("def f(): return 1 / 0")).end == pb.RUN_TOOL_END_RAISED
    assert (await dry("def f(): return 1")).end == pb.RUN_TOOL_END_RETURNED


async def test_nulls_required_by_strict_schemas_are_removed(registry: Any) -> None:
    source = "def f(x: int = 3, y: int | None = 4): return [x, y]"
    assert await dry_run(registry, source, x=None, y=None) == (True, [3, 4])


async def test_large_integers_are_passed_to_the_tool_unchanged(registry: Any) -> None:
    source = "def f(when: int) -> int: return when + 1"
    assert await dry_run(registry, source, when=1_795_000_000_000) == (True, "1795000000001")


async def test_the_newest_version_is_run(registry: Any, tools: Tools) -> None:
    for answer in ("one", "two"):
        await upsert(registry, f"def f() -> str:\n  'Does.'\n  return {answer!r}")
        assert result_of(await run(tools, "f")) == (True, answer)
    tool = (await registry.GetTool(pb.GetToolRequest(name="f"))).tool
    await registry.DeleteTool(pb.DeleteToolRequest(tool_id=tool.id))
    assert "[ToolConstraintError]" in result_of(await run(tools, "f"))[1]


SECRET = '''
import os

def key(how: str) -> object:
    """Gives the secret away."""
    value = os.environ["API_KEY"]
    match how:
        case "raise":
            raise RuntimeError(f"https://x.org/?key={value}")
        case "nested":
            return {value: [f"<{value}>", {"n": 12}]}
        case "number":
            return int(os.environ["NUMBER"])
        case _:
            return sorted(name for name in os.environ if name in ("API_KEY", "NUMBER", "OTHER"))
'''


async def test_secrets_reach_only_the_call_that_names_them(registry: Any, tools: Tools) -> None:
    async def put(name: str, value: str) -> None:
        await registry.PutSecret(pb.PutSecretRequest(name=name, value=value))

    await upsert(registry, SECRET, secret_names=["API_KEY", "NUMBER"])
    ok, text = result_of(await run(tools, "key", how=""))
    assert not ok
    assert text.startswith("key needs the secret API_KEY, NUMBER, which is not stored.")
    await put("API_KEY", "sk-o'ne/two+three")
    await put("NUMBER", "123456789")
    await put("OTHER", "other")
    assert result_of(await run(tools, "key", how="")) == (True, ["API_KEY", "NUMBER"])
    assert result_of(await run(tools, "key", how="raise")) == (
        False,
        "Error executing function key: RuntimeError: https://x.org/?key=[secret API_KEY]",
    )
    assert result_of(await run(tools, "key", how="nested")) == (
        True,
        {"[secret API_KEY]": ["<[secret API_KEY]>", {"n": 12}]},
    )
    assert result_of(await run(tools, "key", how="number")) == (True, "[secret NUMBER]")
    await put("API_KEY", "")
    assert "which is not stored" in result_of(await run(tools, "key", how=""))[1]


REVERSED = '''
import os

def key(how: str) -> object:
    """Gives the secret away in a form that redaction does not know."""
    return os.environ.get("API_KEY", "no secret here")[::-1]
'''


async def test_the_default_scopes_do_not_allow_reading_secrets(
    registry: Any, tools: Tools, services: InnerServices
) -> None:
    await registry.PutSecret(pb.PutSecretRequest(name="API_KEY", value="sk-one-two"))
    trusted = await upsert(registry, SECRET, secret_names=["API_KEY"], allowed_hosts=["a.example"])
    attempts: list[dict[str, Any]] = [
        # A new tool that names the secret.
        {"source": REVERSED.replace("def key", "def mine"), "secret_names": ["API_KEY"]},
        # The code, the hosts or the packages of a tool that names the secret.
        {"source": REVERSED, "secret_names": ["API_KEY"], "allowed_hosts": ["a.example"]},
        {"source": SECRET, "secret_names": ["API_KEY"], "allowed_hosts": ["evil.example"]},
        {
            "source": SECRET,
            "secret_names": ["API_KEY"],
            "allowed_hosts": ["a.example"],
            "pip_requirements": ["six"],
        },
        # The name of the tool, without the secret.
        {"source": REVERSED},
    ]
    with services.acting(current_project(), DEFAULT_SCOPES):
        for fields in attempts:
            with pytest.raises(PermissionDeniedError) as caught:
                await upsert(registry, fields.pop("source"), **fields)
            assert caught.value.reason == Reason.SCOPE_MISSING
            assert caught.value.metadata["scope"] == "secrets"
        with pytest.raises(PermissionDeniedError):
            await registry.DeleteTool(pb.DeleteToolRequest(tool_id=trusted.id))
        # The refused attempts have changed nothing.
        kept = await registry.GetTool(pb.GetToolRequest(tool_id=trusted.id))
        assert kept.tool == trusted
        ran = await registry.RunTool(
            pb.RunToolRequest(source_code=REVERSED, arguments_json='{"how": ""}')
        )
        assert result_of(ran) == (True, "ereh terces on")
        # Agents may still use the tool, and other tools may be defined without secrets.
        assert result_of(await run(tools, "key", how="")) == (True, ["API_KEY"])
        await upsert(registry, REVERSED.replace("def key", "def mine"))


async def test_the_secrets_scope_suffices_to_define_a_tool_with_secrets(
    registry: Any, tools: Tools, services: InnerServices
) -> None:
    with services.acting(current_project(), {Scope.WRITE, Scope.SECRETS}):
        await registry.PutSecret(pb.PutSecretRequest(name="API_KEY", value="sk-one-two"))
        tool = await upsert(registry, SECRET, secret_names=["API_KEY"])
        await upsert(registry, REVERSED, secret_names=["API_KEY"])
        # Redaction protects against mistakes, not against the author of a tool.
        assert result_of(await run(tools, "key", how="")) == (True, "owt-eno-ks")
        await registry.DeleteTool(pb.DeleteToolRequest(tool_id=tool.id))


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [("1A", "long enough", "name"), ("LD_PRELOAD", "long enough", "name"), ("A", "abc", "value")],
)
async def test_a_secret_that_cannot_be_kept_is_refused_and_not_shown(
    registry: Any, name: str, value: str, field: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        await registry.PutSecret(pb.PutSecretRequest(name=name, value=value))
    assert [violation.field for violation in caught.value.violations] == [field]
    assert value not in str(caught.value)


async def test_a_client_tool_is_stored_with_its_schema(
    registry: Any, services: InnerServices
) -> None:
    schema = {
        "$defs": {"Place": {"type": "object", "properties": {"x": {"type": "integer"}}}},
        "properties": {"at": {"$ref": "#/$defs/Place"}},
        "required": ["at"],
    }
    request = pb.UpsertToolRequest(
        name="open_door",
        description="Opens the door.",
        type=tool_pb2.TOOL_TYPE_CLIENT,
        parameters_json=json.dumps(schema),
    )
    tool = (await registry.UpsertTool(request)).tool
    assert json.loads(tool.parameters_json) == {
        "additionalProperties": False,
        "properties": {"at": {"type": "object", "properties": {"x": {"type": "integer"}}}},
        "required": ["at"],
        "type": "object",
    }
    await services.make_agent(tools=["open_door"])
    with pytest.raises(AlreadyExistsError):
        await upsert(registry, name="open_door")


async def test_an_agent_uses_a_tool_of_its_project(registry: Any, services: InnerServices) -> None:
    with pytest.raises(NotFoundError):
        await services.make_agent(tools=["weather"])
    await upsert(registry)
    agent = await services.make_agent(tools=["weather", "memory_insert"])
    services.model.script(
        Reply(calls=(Call("weather", {"town": {"name": "Graz"}, "unit": None}),)), say("Fine.")
    )
    ran = await services.run(agent, "How is the weather?")
    [returned] = ran.tool_returns
    assert json.loads(returned.content)["message"] == {
        "town": "Graz/AT",
        "unit": "CELSIUS",
    }
    with services.signed_in(), pytest.raises(NotFoundError):
        await services.make_agent(tools=["weather"])


async def test_schema_of_a_tool_is_checked_on_a_thread(
    registry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_loop = record_threads(
        monkeypatch, "strata.tool_execution.convert.tools.read_schema", read_schema
    )
    schema = {"type": "object", "properties": {"town": {"type": "string"}}}
    request = pb.UpsertToolRequest(
        type=tool_pb2.TOOL_TYPE_CLIENT,
        name="look_outside",
        description="Looks outside.",
        parameters_json=json.dumps(schema),
    )
    tool = (await registry.UpsertTool(request)).tool
    assert json.loads(tool.parameters_json)["properties"] == schema["properties"]
    assert on_loop == [False]

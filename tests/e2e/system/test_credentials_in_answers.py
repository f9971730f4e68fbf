"""Credentials that providers and MCP servers repeat in their answers are not shown or stored."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from urllib.parse import quote

import asyncpg
import pytest

from doubles.http_server import HttpRequest, HttpResponse, HttpServer
from doubles.model_server import ModelServer
from doubles.script import Call, Fault, Reply, say
from live import LiveSystem
from passage_uploads import new_passages, upload_passages
from polling import eventually
from strata.api.archival.v1 import passage_service_pb2 as passage_pb
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.api.tool_execution.v1 import mcp_service_pb2 as mcp_pb
from strata.api.tool_execution.v1 import mcp_service_pb2_grpc as mcp_grpc
from strata.api.tool_execution.v1 import tool_service_pb2 as tool_pb
from strata.protocol.errors import StrataError
from strata.standalone.data_folder import DataFolder
from whole_system import System

MODEL_KEY = "sk-model/7fQ9+zT4bV=kM2xW8aL5c"
VECTOR_KEY = "sk-vector/3hR6+yU1nB=pD0sE9jG7"
SECRET_HEADER = "mcp-secret/5tY2+oI8uH=vC4qZ6rN1"
PLAIN_HEADER = "mcp-plain/8wX1+eK5dJ=fA7mS3lB9"


def forms_of(key: str) -> list[str]:
    """Returns a key unchanged, URL-encoded, in base64, and truncated."""
    encoded = base64.b64encode(key.encode()).decode()
    return [key, quote(key, safe=""), encoded, key[: len(key) * 2 // 3]]


def traces_of(key: str) -> list[str]:
    """Returns texts; every answer with a form of the key contains at least one of them."""
    half = len(key) // 2 + 1
    encoded = base64.b64encode(key.encode()).decode()
    return [key[:half], quote(key, safe="")[:half], encoded[:half], key[-half:]]


def model_failures(key: str) -> Iterable[Fault | Reply]:
    for form in forms_of(key):
        message = f"The key {form} is refused, see https://x.org/?key={form}."
        yield Fault(400, message, "invalid_request_error")
        yield Fault(401, message, "authentication_error", "invalid_api_key")
        yield Fault(500, message, "api_error")
        yield Reply(text="As I was saying", error_after=(1, Fault(500, message, "api_error")))


class Vectors:
    """An embeddings API; with `repeats`, it repeats the key of each request in its answer."""

    def __init__(self) -> None:
        self.repeats = False
        self.asked = 0
        self.server = HttpServer(self._answer)

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        key = request.headers["authorization"].removeprefix("Bearer ")
        assert key == VECTOR_KEY
        if self.repeats:
            self.asked += 1
            forms = " ".join(forms_of(key))
            status = (400, 401, 500)[self.asked % 3]
            return HttpResponse(status, {"error": {"message": f"The keys {forms} are refused."}})
        data = [
            {"object": "embedding", "index": place, "embedding": [float(len(text)), 3.0, 1.0, 0.0]}
            for place, text in enumerate(request.body["input"])
        ]
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        model = request.body["model"]
        return HttpResponse(200, {"object": "list", "data": data, "model": model, "usage": usage})

    def environment(self) -> dict[str, str]:
        settings = {
            "PROVIDER": "openai",
            "BASE_URL": f"{self.server.url}/v1",
            "API_KEY": VECTOR_KEY,
            "MODEL": "vectors",
            "DIM": "4",
            "RETRIES": "0",
        }
        return {
            f"STRATA_{service}_EMBEDDING_{name}": value
            for service in ("RECALL", "ARCHIVAL")
            for name, value in settings.items()
        }


async def mcp_answer(request: HttpRequest) -> HttpResponse:
    """An MCP server that repeats its headers in a description, in results and in errors."""
    if request.method != "POST":
        return HttpResponse(405)
    headers = (request.headers["x-secret"], request.headers["x-acme-key"])
    assert headers == (SECRET_HEADER, PLAIN_HEADER)
    text = " ".join(form for key in headers for form in forms_of(key))
    match request.body["method"]:
        case "initialize":
            result = {
                "protocolVersion": request.body["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "echo", "version": "1"},
            }
        case "tools/list":
            schema = {"type": "object", "properties": {}}
            result = {
                "tools": [
                    {"name": name, "description": f"Shows {text}", "inputSchema": schema}
                    for name in ("show", "fail", "refuse")
                ]
            }
        case "tools/call" if request.body["params"]["name"] == "refuse":
            error = {"code": -32000, "message": f"refused: {text}"}
            body = {"jsonrpc": "2.0", "id": request.body["id"], "error": error}
            return HttpResponse(200, body)
        case "tools/call":
            failed = request.body["params"]["name"] == "fail"
            result = {"content": [{"type": "text", "text": text}], "isError": failed}
        case _:
            return HttpResponse(202)
    return HttpResponse(200, {"jsonrpc": "2.0", "id": request.body["id"], "result": result})


async def rows_of_database(folder: DataFolder) -> AsyncIterator[tuple[str, str]]:
    """Yields every row of every table as text, with bytes in hexadecimal."""
    password = (folder.postgres / "superuser.password").read_text().strip()
    port = int((folder.postgres / "port").read_text())
    url = f"postgresql://postgres:{password}@127.0.0.1:{port}/strata"
    connection = await asyncpg.connect(url)
    try:
        tables = await connection.fetch(
            "SELECT n.nspname, c.relname FROM pg_catalog.pg_class c"
            " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.relkind IN ('r', 'm') AND n.nspname NOT LIKE 'pg\\_%'"
            " AND n.nspname <> 'information_schema'"
        )
        for schema, table in tables:
            name = f'"{schema}"."{table}"'
            for (row,) in await connection.fetch(f"SELECT held::text FROM {name} AS held"):
                yield f"{schema}.{table}", row
    finally:
        await connection.close()


async def use_models(system: System) -> list[str]:
    """Makes the model provider repeat the key; returns all texts that clients receive."""
    shown = []
    for failure in model_failures(MODEL_KEY):
        agent = await system.make_agent("openai/test-model")
        # A function, not a script: requests that fail before the first delta are sent again.
        system.model.respond(lambda _, step=failure: step)  # type: ignore[misc]
        ran = await system.send(agent, "Hi")
        assert ran.finished.error.message
        again = await system.follow(ran.run_id)
        run = await system.run(ran.run_id)
        shown += [*map(str, ran.events), *map(str, again.events), str(run)]
    shown.append(str(await system.runs.ListRuns(run_pb.ListRunsRequest(page_size=100))))
    assert "secret API key" in "".join(shown)
    return shown


async def use_mcp(system: System, url: str) -> list[str]:
    """Makes the MCP server repeat its headers; returns all texts that clients and models get."""
    servers = mcp_grpc.McpServiceStub(system.channel)
    await system.tools.PutSecret(tool_pb.PutSecretRequest(name="ECHOED", value=SECRET_HEADER))
    server = mcp_pb.McpServer(
        name="echo",
        transport=mcp_pb.MCP_TRANSPORT_STREAMABLE_HTTP,
        url=f"{url}/mcp",
        header_secrets={"X-Secret": "ECHOED"},
        headers={"X-Acme-Key": PLAIN_HEADER},
    )
    added = (await servers.AddMcpServer(mcp_pb.AddMcpServerRequest(server=server))).server
    assert not added.error
    added.ClearField("headers")  # an administrator may read the plain headers
    names = [f"echo__{name}" for name in ("show", "fail", "refuse")]
    agent = await system.make_agent("openai/test-model", tools=names)
    calls = [Call(name) for name in names]
    system.model.requests.clear()
    system.model.script(Reply(calls=calls))
    system.model.respond(lambda _: say("Done."))
    ran = await system.send(agent, "Show it.")
    assert ran.text == "Done."
    sent = [json.dumps(call.body) for call in system.model.requests]
    assert "[secret ECHOED]" in sent[-1]
    assert "[secret X-Acme-Key]" in sent[-1]
    return [str(added), *map(str, ran.events), *sent]


async def use_vectors(system: System, vectors: Vectors) -> list[str]:
    """Makes the embeddings provider repeat the key while text is stored and searched."""
    agent = await system.make_agent("openai/test-model")
    vectors.repeats = True
    system.model.respond(lambda _: say("I see."))
    shown = [str(event) for event in (await system.send(agent, "Cats are on the mat.")).events]
    await eventually(lambda: vectors.asked >= 3)

    new = new_passages(["A dog is in the fog."])
    search = message_pb.SearchMessagesRequest(agent_id=agent.id, query="cats")
    look = passage_pb.SearchPassagesRequest(agent_id=agent.id, query="dogs")
    for call in (
        lambda: upload_passages(system.passages, new, agent_id=agent.id),
        lambda: system.messages.SearchMessages(search),
        lambda: system.passages.SearchPassages(look),
    ):
        try:
            shown.append(str(await call()))
        except StrataError as error:
            shown.append(f"{error!r} {error.metadata}")
    return shown


@pytest.mark.asyncio
# In split mode each service has its own log, and answers of a service pass through others.
@pytest.mark.parametrize(
    "split",
    [pytest.param(False, id="single", marks=pytest.mark.slow), pytest.param(True, id="split")],
)
async def test_no_form_of_a_credential_is_shown_logged_or_stored(
    open_folder: Path, *, split: bool
) -> None:
    vectors, mcp = Vectors(), HttpServer(mcp_answer)
    async with ModelServer(api_keys=[]) as model, vectors.server, mcp:
        environment = {"OPENAI_API_KEY": MODEL_KEY, **vectors.environment()}
        strata = LiveSystem(open_folder / "data", model, split=split, environment=environment)
        try:
            system = await strata.start_system()
            shown = await use_models(system)
            shown += await use_mcp(system, mcp.url)
            shown += await use_vectors(system, vectors)
            folder = DataFolder(strata.data)
            rows = [row async for row in rows_of_database(folder)]
            await system.channel.close()
        finally:
            await strata.close()
    logs = [path for path in (strata.data / "logs").rglob("*") if path.is_file()]
    # One process logs to where it was started from.
    assert logs or not split
    assert strata.log
    texts = [strata.log, *(log.read_text(errors="replace") for log in logs)]
    for key in (MODEL_KEY, VECTOR_KEY, SECRET_HEADER, PLAIN_HEADER):
        for trace in traces_of(key):
            assert [text for text in shown if trace in text] == []
            assert [text for text in texts if trace in text] == []
            hexadecimal = trace.encode().hex()
            holding = {name for name, row in rows if trace in row or hexadecimal in row}
            # The configuration of a server holds its plain headers.
            configured = {"tool_execution.mcp_servers"} if key == PLAIN_HEADER else set()
            assert holding <= configured, (trace, holding)
    assert {name.partition(".")[0] for name, _ in rows} >= {"gateway", "recall", "archival"}

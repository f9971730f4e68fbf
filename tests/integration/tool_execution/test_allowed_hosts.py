"""Tools with allowed hosts: in the registry, through the API, and with operator settings."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from integration.tool_execution.conftest import Tools, UnusedSandbox
from integration.tool_execution.registry_calls import result_of, run, upsert
from strata.api.common.v1 import tool_pb2
from strata.api.tool_execution.v1 import tool_service_pb2 as pb
from strata.protocol.errors import InvalidArgumentError, UnimplementedError, WrongSettingError
from strata.shared.context import Caller, RequestContext, use
from strata.shared.sandbox import Isolation
from strata.shared.secrets import Envelope, generate_master_key, open_envelope
from strata.shared.web.url_guard import Guard
from strata.tool_execution.custom.executor import SandboxRunner
from strata.tool_execution.custom.secrets import SecretBox
from strata.tool_execution.domain.network_policy import NetworkPolicy
from strata.tool_execution.domain.tools import Effect, OwnDefinition, Tool, ToolError, ToolType
from strata.tool_execution.settings import ToolExecutionSettings
from strata.tool_runner.egress.proxy import EgressProxy, ProxyLimits
from strata.tool_runner.sandbox.jail import JailConfig, JailSandbox
from strata.tool_runner.settings import ToolRunnerSettings
from web_servers import Names, ok, raw_server

pytestmark = pytest.mark.asyncio(loop_scope="session")

SOURCE = '''
import os
import urllib.error
import urllib.request

def get(url: str) -> str:
    """Gets a page.

    Args:
        url: Of the page.
    """
    headers = {"Authorization": "Bearer " + os.environ.get("API_KEY", "")}
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers)).read().decode()
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read().decode()}"
'''


def tool(*hosts: str, secrets: tuple[str, ...] = ()) -> Tool:
    own = OwnDefinition("tool-1", SOURCE, "get", allowed_hosts=hosts, secret_names=secrets)
    return Tool("get", "d", ToolType.CUSTOM, {}, Effect.UNDECLARED, own=own)


async def test_hosts_are_stored_and_make_another_version(registry: Any, tools: Tools) -> None:
    without = await upsert(registry, SOURCE)
    stored = await upsert(
        registry, SOURCE, allowed_hosts=["b.example.com", "*.a.example", "b.example.com"]
    )
    assert list(stored.allowed_hosts) == ["*.a.example", "b.example.com"]
    assert stored.version != without.version
    assert (await registry.GetTool(pb.GetToolRequest(name="get"))).tool == stored
    assert (await upsert(registry, SOURCE)).version == without.version
    stored = await upsert(registry, SOURCE, allowed_hosts=["b.example.com"])
    # The proxy answers that another list applies: the call has hosts, and the list belongs to the
    # tool.
    arguments = {"url": "http://other.example.com/"}
    request = pb.RunToolRequest(tool_id=stored.id, arguments_json=json.dumps(arguments))
    ran = await registry.RunTool(request)
    if ran.isolation == Isolation.NAMESPACES.label:
        words = "403 The tool's allowed_hosts do not name other.example.com."
        ok_, value = result_of(ran)
        assert (ok_, value.strip()) == (True, words)
        by_agent = result_of(await run(tools, "get", **arguments))
        assert (by_agent[0], by_agent[1].strip()) == (True, words)
    dry = pb.RunToolRequest(source_code=SOURCE, arguments_json=json.dumps(arguments))
    assert not result_of(await registry.RunTool(dry))[0]


@pytest.mark.parametrize(
    ("hosts", "field"),
    [
        (["127.0.0.1"], "allowed_hosts[0]"),
        (["a.com", "b.com:443"], "allowed_hosts[1]"),
        (["*"], "allowed_hosts[0]"),
        ([f"h{n}.com" for n in range(33)], "allowed_hosts"),
    ],
)
async def test_invalid_hosts_are_violations(registry: Any, hosts: list[str], field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        await upsert(registry, SOURCE, allowed_hosts=hosts)
    assert [violation.field for violation in caught.value.violations] == [field]


async def test_a_client_tool_cannot_have_allowed_hosts(registry: Any) -> None:
    fields = {"name": "x", "description": "d", "parameters_json": '{"properties": {}}'}
    with pytest.raises(InvalidArgumentError) as caught:
        await upsert(
            registry, "", type=tool_pb2.TOOL_TYPE_CLIENT, allowed_hosts=["a.com"], **fields
        )
    assert [violation.field for violation in caught.value.violations] == ["allowed_hosts"]


async def test_the_operator_decides_at_storing_and_at_running() -> None:
    off = SandboxRunner(UnusedSandbox(), SecretBox(None), network=NetworkPolicy(allowed=False))
    with pytest.raises(UnimplementedError) as caught:
        await off.prepare(tool("a.example.com"))
    assert caught.value.metadata["what"] == "allowed_hosts"
    with pytest.raises(ToolError, match="switched off"):
        await off.run(tool("a.example.com"), {}, {})
    await off.prepare(tool())

    some = NetworkPolicy(allowed=True, hosts=("*.example.com",))
    some_runner = SandboxRunner(UnusedSandbox(), SecretBox(None), network=some)
    await some_runner.prepare(tool("a.example.com", "*.b.example.com"))
    with pytest.raises(InvalidArgumentError, match=r"b\.org"):
        await some_runner.prepare(tool("a.example.com", "b.org"))
    with pytest.raises(ToolError, match=r"b\.org"):
        await some_runner.run(tool("a.example.com", "b.org"), {}, {})


async def test_a_secret_is_sent_to_the_host_and_not_shown() -> None:
    caller = Caller(organization_id="o", project_id="project-1", principal="p")
    with use(RequestContext(caller)):
        await _send_a_secret()


async def _send_a_secret() -> None:
    box = SecretBox(_envelope())
    sealed = {"API_KEY": box.seal("API_KEY", "sk-very-secret")}
    async with raw_server() as server:
        server.answers["/"] = ok(b"your key is sk-very-secret")
        guard = Guard(Names(), private_networks=["127.0.0.0/8"], ports=[server.port])
        proxies = partial(EgressProxy, admission=guard, limits=ProxyLimits())
        sandbox = await JailSandbox.start(JailConfig(proxies=proxies, warm=1))
        try:
            if sandbox.isolation is not Isolation.NAMESPACES:
                pytest.skip("this machine has no namespaces")
            runner = SandboxRunner(sandbox, box, network=NetworkPolicy(allowed=True))
            asking = tool("api.example.com", secrets=("API_KEY",))
            url = server.url("/", "api.example.com")
            ran = await runner.run(asking, {"url": url}, sealed)
        finally:
            await sandbox.close()
        assert ran.output.value == "your key is [secret API_KEY]"
        assert "Authorization: Bearer sk-very-secret\r\n" in server.heads[0]


async def test_invalid_host_settings_are_refused() -> None:
    with pytest.raises(WrongSettingError, match="EGRESS_HOSTS"):
        ToolExecutionSettings(egress_hosts=("10.0.0.1",))
    with pytest.raises(WrongSettingError, match="EGRESS_PRIVATE_NETWORKS"):
        ToolRunnerSettings(egress_private_networks=("x",))


def _envelope() -> Envelope:
    envelope = open_envelope([generate_master_key()], None)
    assert envelope is not None
    return envelope

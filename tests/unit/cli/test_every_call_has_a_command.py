"""The command line and the Python client call every method that a gateway serves."""

from __future__ import annotations

import ast
import re

import grpc.aio

from strata.client.services import Services
from strata.gateway.registry import public_services
from unit.house.repository import REPOSITORY, modules, name_of, trees

# Declared but not implemented: they answer UNIMPLEMENTED.
NOT_BUILT = {
    "AdminService.ListAuditEvents",
    "AdminService.EraseSubject",
    "AgentService.ExportAgent",
    "AgentService.ImportAgent",
}
CALLS = sorted(
    f"{service.name}.{method.name}" for service in public_services() for method in service.methods
)


def used() -> set[str]:
    """Returns the methods that the sources of the command line and of the client name."""
    methods = {call.partition(".")[2] for call in CALLS}
    clients = (
        path
        for path in modules()
        # `strata mcp serve` makes the calls of `agent_mcp`.
        if any(part in name_of(path) for part in ("/cli/", "/client/", "/agent_mcp/"))
        and "/client/generated/" not in name_of(path)
    )
    return {
        node.attr
        for _, tree in trees(clients, re.compile("|".join(sorted(methods))))
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
    }


def test_every_call_is_made_by_a_command() -> None:
    methods = used()
    built = [call for call in CALLS if call not in NOT_BUILT]
    assert [call for call in built if call.partition(".")[2] not in methods] == []


def test_the_exceptions_are_calls_of_a_gateway() -> None:
    assert set(CALLS) >= NOT_BUILT


def test_documentation_says_which_calls_are_not_implemented() -> None:
    marked = {
        f"{service.name}.{rpc}"
        for service in public_services()
        for rpc in re.findall(
            r"// Not implemented in this release \(UNIMPLEMENTED, NOT_BUILT\)\."
            r"(?:(?!;|\brpc\b)[\s\S])*\brpc (\w+)\(",
            (REPOSITORY / "protos" / service.file.name).read_text("utf-8"),
        )
        if rpc in service.methods_by_name
    }
    assert marked == NOT_BUILT
    page = (REPOSITORY / "docs" / "guides" / "python-calls.md").read_text("utf-8")
    # `ImportAgent` has no generated method: its requests are a stream.
    assert page.count("Not implemented in this release") == len(NOT_BUILT) - 1


async def test_the_python_client_has_a_stub_of_every_service() -> None:
    async with grpc.aio.insecure_channel("localhost:1") as channel:
        services = Services(channel)
        stubs = [getattr(services, name) for name in dir(Services) if not name.startswith("_")]
        for service in public_services():
            assert any(
                type(stub).__name__ == f"{service.name}Stub"
                and all(hasattr(stub, method.name) for method in service.methods)
                for stub in stubs
            ), service.name

"""The command line and the Python client call every method that a gateway serves."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import grpc.aio
import pytest

import strata
from strata.client.services import Services
from strata.gateway.registry import public_services

# Declared and not built: they answer UNIMPLEMENTED.
NOT_BUILT = {
    "AdminService.ListAuditEvents",
    "AdminService.EraseSubject",
    "AgentService.ExportAgent",
    "AgentService.ImportAgent",
}
CALLS = sorted(
    f"{service.name}.{method.name}" for service in public_services() for method in service.methods
)


def names_in(*folders: str) -> Iterator[str]:
    """Yields the names of attributes that the sources of these packages use."""
    for root in strata.__path__:
        for folder in folders:
            for file in (Path(root) / folder).rglob("*.py"):
                for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                    if isinstance(node, ast.Attribute):
                        yield node.attr


USED = frozenset(names_in("cli", "client"))


@pytest.mark.parametrize("call", [call for call in CALLS if call not in NOT_BUILT])
def test_a_call_is_made_by_a_command(call: str) -> None:
    assert call.partition(".")[2] in USED


def test_the_exceptions_are_calls_of_a_gateway() -> None:
    assert set(CALLS) >= NOT_BUILT


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

"""The list of public methods agrees with the proto files."""

from __future__ import annotations

from strata.gateway.registry import PROXIED_SERVICES, public_services
from strata.gateway.settings import GatewaySettings
from strata.shared.channels import services_of
from strata.shared.settings import MIB

INTERNAL = {
    "RunFollowService",
    "TurnService",
    "UnfinishedAgentService",
    "ContextService",
    "WindowService",
    "AgentArchiveService",
    "FileIndexService",
    "ExecutionService",
}


def test_every_service_is_either_public_or_listed_as_internal() -> None:
    services = ("gateway", *PROXIED_SERVICES)
    declared = {grpc.full_name for service in services for grpc in services_of(service)}
    public = {service.full_name for service in public_services()}
    assert public <= declared
    assert {name.rpartition(".")[2] for name in declared - public} == INTERNAL


def test_an_api_is_forwarded_to_the_service_that_declares_it() -> None:
    for service, grpc_services in PROXIED_SERVICES.items():
        for grpc_service in grpc_services:
            assert grpc_service.full_name.startswith(f"strata.api.{service}.v1.")


def test_setting_another_limit_keeps_the_message_limit_of_the_gateway(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("STRATA_GATEWAY_LIMITS__MAX_IN_FLIGHT_UNARY", "7")
    settings = GatewaySettings()
    assert settings.limits.max_message_bytes == 4 * MIB
    assert settings.limits.max_in_flight_unary == 7
    assert (settings.host, settings.port) == ("127.0.0.1", 7600)

"""Channel settings derived from the contracts, and the service config."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool

from strata.api.common.v1 import call_options_pb2
from strata.protocol.connections import SERVICE_CONFIG
from strata.shared.channels import (
    ChannelFactory,
    ServiceChannels,
    patience_of,
    services_of,
)


@pytest.fixture(scope="module")
def service() -> Any:
    """A service with a method of every idempotency level, and a stream."""
    file = descriptor_pb2.FileDescriptorProto(name="levels.proto", package="levels")
    file.message_type.add(name="Nothing")
    declared = file.service.add(name="LevelService")
    levels = descriptor_pb2.MethodOptions
    for name, level, streaming in [
        ("Write", levels.IDEMPOTENCY_UNKNOWN, False),
        ("Read", levels.NO_SIDE_EFFECTS, False),
        ("Put", levels.IDEMPOTENT, False),
        ("Watch", levels.NO_SIDE_EFFECTS, True),
    ]:
        method = declared.method.add(
            name=name,
            input_type=".levels.Nothing",
            output_type=".levels.Nothing",
            server_streaming=streaming,
        )
        method.options.idempotency_level = level
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool.FindServiceByName("levels.LevelService")


def test_retries_of_grpc_are_disabled_in_the_service_config() -> None:
    assert json.loads(SERVICE_CONFIG) == {"loadBalancingConfig": [{"round_robin": {}}]}


def test_only_repeatable_unary_methods_have_an_attempt_timeout(service: Any) -> None:
    assert patience_of([service], 5.0) == {
        "/levels.LevelService/Read": 5.0,
        "/levels.LevelService/Put": 5.0,
    }


def test_the_grpc_services_of_a_service_are_found_in_its_package() -> None:
    names = {service.full_name for service in services_of("recall")}
    assert {"strata.api.recall.v1.MessageService", "strata.api.recall.v1.WindowService"} <= names
    with pytest.raises(ModuleNotFoundError):
        services_of("attic")


async def test_a_service_without_target_is_named() -> None:
    factory = ChannelFactory()
    channels = ServiceChannels({"recall": "127.0.0.1:1"}, factory)
    try:
        assert channels.channel("recall") is channels.channel("recall")
        with pytest.raises(ValueError, match=r"'archival' \(known: recall\)"):
            channels.channel("archival")
    finally:
        await factory.close()


SERVICES = ("agent_loop", "archival", "core_memory", "gateway", "recall", "tool_execution")


@pytest.mark.parametrize("name", SERVICES)
def test_only_methods_that_may_be_repeated_declare_the_time_of_an_attempt(name: str) -> None:
    services = services_of(name)
    repeatable = patience_of(services, 5.0)
    for declared in services:
        for method in declared.methods:
            seconds = method.GetOptions().Extensions[call_options_pb2.attempt_seconds]
            path = f"/{declared.full_name}/{method.name}"
            assert seconds == 0 or path in repeatable
            assert repeatable.get(path, 5.0) >= 5.0


def test_a_search_has_a_longer_attempt_timeout_than_a_lookup() -> None:
    patience = patience_of(services_of("archival"), 5.0)
    service = "/strata.api.archival.v1.PassageService"
    assert patience[f"{service}/SearchPassages"] > patience[f"{service}/GetPassage"] == 5.0
    assert f"{service}/UploadPassages" not in patience

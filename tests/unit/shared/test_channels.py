"""The service config of network channels, made from the contracts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool

from strata.shared.channels import (
    ChannelFactory,
    RoomChannels,
    service_config,
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


def test_only_repeatable_unary_methods_are_retried_and_only_on_unavailable(service: Any) -> None:
    config = json.loads(service_config([service], max_attempts=4))
    assert config["loadBalancingConfig"] == [{"round_robin": {}}]
    (method_config,) = config["methodConfig"]
    assert [each["method"] for each in method_config["name"]] == ["Read", "Put"]
    assert method_config["retryPolicy"]["retryableStatusCodes"] == ["UNAVAILABLE"]
    assert method_config["retryPolicy"]["maxAttempts"] == 4


def test_without_repeatable_methods_nothing_is_retried(service: Any) -> None:
    assert "methodConfig" not in json.loads(service_config([], max_attempts=4))
    assert "methodConfig" not in json.loads(service_config([service], max_attempts=1))


def test_the_services_of_a_room_are_found_in_its_package() -> None:
    names = {service.full_name for service in services_of("recall")}
    assert {"strata.api.recall.v1.MessageService", "strata.api.recall.v1.WindowService"} <= names
    with pytest.raises(ModuleNotFoundError):
        services_of("attic")


async def test_a_room_without_target_is_named() -> None:
    factory = ChannelFactory()
    channels = RoomChannels({"recall": "127.0.0.1:1"}, factory)
    try:
        assert channels.channel("recall") is channels.channel("recall")
        with pytest.raises(ValueError, match=r"'archival' \(known: recall\)"):
            channels.channel("archival")
    finally:
        await factory.close()

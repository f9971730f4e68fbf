"""The form of request ids, and the digests of requests."""

from __future__ import annotations

import pytest

from strata.agent_loop.domain.run.journal import idempotency_key
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.protocol.errors import AlreadyExistsError, InvalidArgumentError, Reason
from strata.protocol.request_ids import has_request_id, request_id_numbers
from strata.shared.channels import services_of
from strata.shared.idempotency.keys import (
    MAX_REQUEST_ID,
    check_request_id,
    check_same_request,
    digest_of,
    is_request_id,
    request_id_violations,
)


@pytest.mark.parametrize(
    "request_id", ["", "order-4711", "run-1/2/call_3", "!~", "r" * MAX_REQUEST_ID]
)
def test_printable_ascii_up_to_the_limit_is_a_request_id(request_id: str) -> None:
    assert is_request_id(request_id)
    assert check_request_id(request_id) == request_id
    assert request_id_violations(request_id) == []


@pytest.mark.parametrize(
    "request_id", ["r" * (MAX_REQUEST_ID + 1), "order 4711", "ü", "a\n", "\0", " "]
)
def test_other_texts_are_refused_by_the_name_of_the_field(request_id: str) -> None:
    with pytest.raises(InvalidArgumentError, match="at most 256 printable ASCII") as caught:
        check_request_id(request_id, "header.request_id")
    assert [violation.field for violation in caught.value.violations] == ["header.request_id"]


def test_digest_depends_on_label_and_content() -> None:
    request = pb.DeleteBlockRequest(block_id="block-1")
    digests = {
        digest_of("DeleteBlock\n", request),
        digest_of("PurgeBlock\n", request),
        digest_of("DeleteBlock\n", pb.DeleteBlockRequest(block_id="block-2")),
    }
    assert len(digests) == 3
    assert digest_of("DeleteBlock\n", pb.DeleteBlockRequest(block_id="block-1")) in digests


def test_digests_are_those_of_earlier_releases() -> None:
    # Stored digests are compared with new ones, so the algorithm must not change.
    request = pb.DeleteBlockRequest(block_id="block-1", request_id="order-1")
    expected = "ecafb326dd793081669232f430279bd7aa523b4a4bb918880968fad39c913edd"
    assert digest_of("DeleteBlock\n", request) == expected


def test_reused_id_is_named() -> None:
    check_same_request("order-1", "a", "a")
    with pytest.raises(AlreadyExistsError, match="'order-1' was used before") as caught:
        check_same_request("order-1", "a", "b")
    assert caught.value.reason is Reason.REQUEST_ID_REUSED
    assert caught.value.metadata == {"request_id": "order-1"}


@pytest.mark.parametrize("call_id", ["call_1", "call 1", "aufruf-ü", "c" * 500, "a\nb"])
def test_key_of_a_tool_call_is_a_request_id(call_id: str) -> None:
    key = idempotency_key("run-1", 2, call_id)
    assert is_request_id(key)
    assert key == idempotency_key("run-1", 2, call_id)
    assert key != idempotency_key("run-1", 2, call_id + "x")


def test_a_request_id_is_found_in_every_serialised_request() -> None:
    numbers = request_id_numbers(services_of("agent_loop"))
    path = "/strata.api.agent_loop.v1.AgentService/CreateAgent"
    full = agent_pb.CreateAgentRequest(name="Ada", tags=["a"] * 300)
    for request_id in ("", "once"):
        full.request_id = request_id
        for request in (full, full.SerializeToString()):
            assert has_request_id(request, numbers[path]) is bool(request_id)
    # What is malformed is refused by the service.
    assert not has_request_id(b"\x0b", numbers[path])
    assert not has_request_id(b"\xff\xff", numbers[path])
    # A method without such a field is repeatable by itself.
    assert "/strata.api.agent_loop.v1.AgentService/DeleteAgent" not in numbers

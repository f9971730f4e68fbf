"""Checks of request fields, which report all violations of a request together."""

from __future__ import annotations

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from strata.api.archival.v1 import passage_service_pb2 as pb
from strata.protocol.errors import InvalidArgumentError, Reason
from strata.shared.checks import Checks
from strata.shared.ids import new_id


def error_of(checks: Checks) -> InvalidArgumentError:
    with pytest.raises(InvalidArgumentError) as raised:
        checks.done()
    return raised.value


def test_valid_fields_raise_nothing_and_are_returned() -> None:
    checks = Checks()
    agent_id = new_id("agent")
    assert checks.id(agent_id, "agent", "agent_id") == agent_id
    assert checks.id("", "agent", "other_id", optional=True) == ""
    assert checks.ids([agent_id], "agent", "agent_ids", most=1) == [agent_id]
    assert checks.ids([agent_id] * 3, "agent", "agent_ids") == [agent_id] * 3
    assert checks.text("text", "text", most=4) == "text"
    assert checks.texts(["a"], "tags", lambda _: "", most=1) == ["a"]
    assert checks.name("Anna", "name") == "Anna"
    assert checks.request_id("r" * 256) == "r" * 256
    assert checks.number(5, "number", least=1, most=5) == 5
    assert checks.query("where", "query", most=5) == "where"
    checks.done()


def test_the_error_names_every_wrong_field() -> None:
    checks = Checks()
    checks.id("nonsense", "agent", "agent_id")
    checks.text("\0", "text", most=4)
    checks.request_id("r" * 257)
    checks.not_negative(-1, "limit")
    error = error_of(checks)
    assert error.reason is Reason.INVALID_FIELD
    assert [violation.field for violation in error.violations] == [
        "agent_id",
        "text",
        "request_id",
        "limit",
    ]
    assert error.message == (
        "The request has wrong fields: agent_id must look like agent-<uuid>; text must not hold the"
        " character U+0000; request_id must be at most 256 printable ASCII characters without"
        " spaces; limit must not be negative."
    )


def test_if_only_ids_are_wrong_the_reason_is_invalid_id() -> None:
    checks = Checks()
    checks.id("nonsense", "agent", "agent_id")
    error = error_of(checks)
    assert error.reason is Reason.INVALID_ID
    assert error.metadata["id"] == "nonsense"
    checks.id("nonsense", "run", "run_id")
    assert error_of(checks).reason is Reason.INVALID_ID


def test_list_is_limited_and_each_wrong_text_is_named() -> None:
    checks = Checks()
    checks.texts(["good", "bad", "good"], "tags", lambda text: "is bad" * (text == "bad"), most=2)
    assert [
        (violation.field, violation.description) for violation in error_of(checks).violations
    ] == [
        ("tags", "has 3, at most 2"),
        ("tags[1]", "is bad"),
    ]


@pytest.mark.parametrize(
    "request_", [pb.ListPassagesRequest(), pb.ListPassagesRequest(archive_id="a", agent_id="b")]
)
def test_exactly_one_of_some_fields_must_be_set(request_: pb.ListPassagesRequest) -> None:
    checks = Checks()
    checks.exactly_one(request_, "archive_id", "agent_id")
    assert (
        error_of(checks).violations[0].description == "set exactly one of archive_id and agent_id"
    )


def test_times_are_in_range_and_in_order() -> None:
    request = pb.ListPassagesRequest(start_time=Timestamp(seconds=60), end_time=Timestamp())
    checks = Checks()
    start = checks.optional_time(request, "start_time")
    end = checks.optional_time(request, "end_time")
    checks.time_range(start, end)
    assert error_of(checks).violations[0].description == "must be after start_time"
    checks = Checks()
    request = pb.ListPassagesRequest(start_time=Timestamp(seconds=2**62))
    assert checks.optional_time(request, "start_time") is None
    assert checks.optional_time(request, "end_time") is None
    assert "between the years 1 and 9999" in error_of(checks).message


def test_ids_of_a_list_are_checked_singly_up_to_its_limit() -> None:
    checks = Checks()
    checks.ids([new_id("agent"), "x", "y"], "agent", "agent_ids", most=2)
    error = error_of(checks)
    fields = [violation.field for violation in error.violations]
    assert fields == ["agent_ids[1]", "agent_ids"]

"""Token counts: their arithmetic, and their proto and stored forms."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strata.api.common.v1 import usage_pb2
from strata.shared.convert.usage import usage_from_proto, usage_to_proto
from strata.shared.usage import COUNTS, FIELDS, Usage

tokens = st.integers(0, 10**6)
usages = st.builds(Usage, tokens, tokens, tokens, tokens, tokens, st.booleans())


@given(usages, usages)
def test_usage_can_be_added_converted_and_stored(one: Usage, other: Usage) -> None:
    total = one + other
    assert total.prompt_tokens == one.prompt_tokens + other.prompt_tokens
    assert total.total_tokens == one.total_tokens + other.total_tokens
    assert total.estimated == (one.estimated or other.estimated)
    assert usage_from_proto(usage_to_proto(total)) == total
    assert Usage.from_json(total.to_json()) == total


@given(usages, usages)
def test_difference_is_never_below_zero(one: Usage, other: Usage) -> None:
    left = one.less(other)
    for name in COUNTS:
        assert getattr(left, name) == max(0, getattr(one, name) - getattr(other, name))
    assert left == Usage() or left.estimated == one.estimated


def test_every_field_of_the_proto_is_converted() -> None:
    assert {*FIELDS, "total_tokens"} == set(usage_pb2.Usage.DESCRIPTOR.fields_by_name)
    assert usage_to_proto(Usage(7, 2)).total_tokens == 9


def test_stored_form_of_earlier_builds_is_read() -> None:
    stored = {
        "prompt_tokens": 7,
        "completion_tokens": 2,
        "total_tokens": 9,
        "cached_input_tokens": 3,
        "estimated": True,
    }
    assert Usage.from_json(stored) == Usage(7, 2, 3, estimated=True)

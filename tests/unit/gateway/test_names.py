"""Names of organizations, projects and keys."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.api.gateway.v1 import admin_service_pb2 as pb
from strata.gateway.auth.convert import new_key, new_organization, new_organization_key, new_project
from strata.protocol.errors import InvalidArgumentError
from strata.shared.names import name_problems

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PLACES: dict[str, Callable[[str], Any]] = {
    "organization": lambda name: new_organization(pb.CreateOrganizationRequest(name=name)),
    "project": lambda name: new_project(pb.CreateProjectRequest(name=name), ["default"]),
    "key": lambda name: new_key(pb.CreateApiKeyRequest(name=name), NOW),
    "organization key": lambda name: new_organization_key(
        pb.CreateOrganizationKeyRequest(name=name), NOW
    ),
}
places = pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)


@places
@pytest.mark.parametrize(
    "name", ["", " ", "\u200b", "a/b", "a\\b", "a\nb", "a\x00", "a\u2028b", " a", "a ", "a" * 129]
)
def test_a_name_that_breaks_the_rule_is_refused_by_its_field(
    place: Callable[[str], Any], name: str
) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        place(name)
    assert {violation.field for violation in refused.value.violations} == {"name"}


@places
@given(name=st.text(st.characters(categories=["L", "N", "S"]), min_size=1, max_size=128))
def test_every_valid_name_is_accepted(place: Callable[[str], Any], name: str) -> None:
    assert name_problems(name) == []
    place(name)

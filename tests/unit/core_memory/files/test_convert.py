"""Requests that search files."""

from __future__ import annotations

import pytest

from strata.api.core_memory.v1 import file_service_pb2 as pb
from strata.core_memory.files.convert import to_grep, to_search
from strata.protocol.errors import InvalidArgumentError
from strata.shared.ids import new_id

AGENT = new_id("agent")


@pytest.mark.parametrize("blank", ["", "  ", "\n\t", "\u200b"])
def test_a_blank_query_and_a_blank_pattern_are_refused_by_their_field(blank: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        to_search(pb.SearchFilesRequest(agent_id=AGENT, query=blank))
    assert [violation.field for violation in refused.value.violations] == ["query"]
    with pytest.raises(InvalidArgumentError) as refused:
        to_grep(pb.GrepFilesRequest(agent_id=AGENT, pattern=blank))
    assert [violation.field for violation in refused.value.violations] == ["pattern"]


def test_a_pattern_that_matches_only_blanks_is_accepted() -> None:
    assert to_grep(pb.GrepFilesRequest(agent_id=AGENT, pattern=r"\s{2}")).pattern == r"\s{2}"

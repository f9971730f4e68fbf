"""Requests that upload and search files."""

from __future__ import annotations

import pytest

from strata.api.core_memory.v1 import file_service_pb2 as pb
from strata.core_memory.files.convert import to_grep, to_header, to_search
from strata.core_memory.files.domain.grep import check_query
from strata.protocol.errors import InvalidArgumentError
from strata.shared.ids import new_id

AGENT = new_id("agent")


@pytest.mark.parametrize("blank", ["", "  ", "\n\t", "\u200b"])
def test_a_blank_query_is_refused_by_its_field(blank: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        to_search(pb.SearchFilesRequest(agent_id=AGENT, query=blank))
    assert [violation.field for violation in refused.value.violations] == ["query"]


@pytest.mark.parametrize("blank", ["", "  ", "\n\t", "\u200b"])
def test_a_blank_pattern_is_refused_by_its_field_with_a_message_for_the_model(blank: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        check_query(to_grep(pb.GrepFilesRequest(agent_id=AGENT, pattern=blank)))
    [violation] = refused.value.violations
    assert (violation.field, refused.value.message) == ("pattern", "Empty search pattern provided")


def test_a_pattern_that_matches_only_blanks_is_accepted() -> None:
    assert to_grep(pb.GrepFilesRequest(agent_id=AGENT, pattern=r"\s{2}")).pattern == r"\s{2}"


@pytest.mark.parametrize("media_type", ["text/plain\nstate: ready", "text/\u202eplain", "a\x1b[2J"])
def test_a_media_type_is_one_line(media_type: str) -> None:
    header = pb.UploadFileHeader(folder_id=new_id("folder"), name="a.txt", media_type=media_type)
    with pytest.raises(InvalidArgumentError) as refused:
        to_header(header)
    assert [violation.field for violation in refused.value.violations] == ["header.media_type"]

from __future__ import annotations

import pytest

from strata.api.archival.v1 import archive_service_pb2 as archive_pb
from strata.api.archival.v1 import passage_service_pb2 as pb
from strata.archival import convert, convert_passages
from strata.shared.errors import InvalidArgumentError
from strata.shared.ids import new_id


@pytest.mark.parametrize("seconds", [-1, 101 * 365 * 24 * 3600])
def test_a_lifetime_that_cannot_be_is_refused(seconds: int) -> None:
    request = archive_pb.UpdateArchiveRequest(
        archive_id=new_id("archive"), time_to_live_seconds=seconds
    )
    with pytest.raises(InvalidArgumentError):
        convert.to_change(request)
    request.time_to_live_seconds = 60
    assert convert.to_change(request).time_to_live == 60


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("reason", pb.UpdatePassageRequest(reason="x" * 3000)),
        ("reason", pb.UpdatePassageRequest(reason="a\0")),
        ("metadata", pb.UpdatePassageRequest(metadata={"": "x"})),
        ("metadata", pb.UpdatePassageRequest(metadata={"k": "a\0"})),
        ("metadata", pb.UpdatePassageRequest(metadata={"k": "x" * 20_000})),
        ("metadata", pb.UpdatePassageRequest(metadata={str(n): "" for n in range(65)})),
        ("text", pb.UpdatePassageRequest(text=" ")),
    ],
)
def test_a_wrong_change_is_refused_by_its_field(
    field: str, request_: pb.UpdatePassageRequest
) -> None:
    request_.passage_id = new_id("passage")
    with pytest.raises(InvalidArgumentError) as caught:
        convert_passages.check_change(request_)
    assert [each.field for each in caught.value.violations] == [field]

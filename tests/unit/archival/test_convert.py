from __future__ import annotations

import pytest

from archival_support import DIM, MODEL, NOW
from strata.api.archival.v1 import archive_service_pb2 as pb
from strata.archival import convert
from strata.shared.errors import UnimplementedError
from strata.shared.ids import new_id


def test_a_lifetime_that_nothing_keeps_is_not_taken() -> None:
    with pytest.raises(UnimplementedError):
        convert.to_archive(
            pb.CreateArchiveRequest(name="a", time_to_live_seconds=60), MODEL, DIM, NOW
        )
    with pytest.raises(UnimplementedError):
        convert.to_change(
            pb.UpdateArchiveRequest(archive_id=new_id("archive"), time_to_live_seconds=60)
        )
    assert convert.to_archive(pb.CreateArchiveRequest(name="a"), MODEL, DIM, NOW).time_to_live == 0

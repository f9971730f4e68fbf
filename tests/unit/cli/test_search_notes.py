"""Marks and notes in the output of searches."""

from __future__ import annotations

from strata.api.archival.v1.passage_service_pb2 import PassageHit
from strata.api.common.v1.search_pb2 import PossiblyOutdated
from strata.api.recall.v1.message_service_pb2 import MessageHit
from strata.cli.search_notes import outdated_mark


def test_a_possibly_outdated_result_names_the_newer_one() -> None:
    outdated = PossiblyOutdated(newer_id="message-2")
    assert outdated_mark(MessageHit(possibly_outdated=outdated)) == (
        "[possibly outdated: see message-2] "
    )
    assert outdated_mark(PassageHit()) == ""

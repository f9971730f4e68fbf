"""The index service under its name in archival."""

from __future__ import annotations

from strata.api.archival.v1 import passage_index_service_pb2_grpc as pb_grpc
from strata.shared.search.reindexing.servicer import IndexServicer


class PassageIndexServicer(IndexServicer, pb_grpc.PassageIndexServiceServicer):
    """See `IndexServicer`."""

"""The index service under its name in recall."""

from __future__ import annotations

from strata.api.recall.v1 import message_index_service_pb2_grpc as pb_grpc
from strata.shared.search.reindexing.servicer import IndexServicer


class MessageIndexServicer(IndexServicer, pb_grpc.MessageIndexServiceServicer):
    """See `IndexServicer`."""

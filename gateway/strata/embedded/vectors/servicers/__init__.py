"""Qdrant's gRPC services over the collection store."""

from strata.embedded.vectors.servicers.collections import CollectionsServicer, RootServicer
from strata.embedded.vectors.servicers.points import PointsServicer

__all__ = ["CollectionsServicer", "PointsServicer", "RootServicer"]

"""Qdrant's gRPC services over the collection store."""

from strata.standalone.vectors.servicers.collections import CollectionsServicer, RootServicer
from strata.standalone.vectors.servicers.points import PointsServicer

__all__ = ["CollectionsServicer", "PointsServicer", "RootServicer"]

"""The embedded vector engine: a process that serves the needed part of Qdrant's gRPC API."""

from strata.standalone.vectors.process import EmbeddedVectors

__all__ = ["EmbeddedVectors"]

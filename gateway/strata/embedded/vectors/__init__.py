"""The embedded vector engine: a process that speaks the needed part of Qdrant's gRPC API."""

from strata.embedded.vectors.process import EmbeddedVectors

__all__ = ["EmbeddedVectors"]

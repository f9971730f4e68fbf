"""Archival memory: passages for the long term, searched by meaning and by words."""

from strata.shared import fork_safety as _before_grpc  # noqa: F401 - gRPC is imported after it

"""Strata on one machine.

The engines (PostgreSQL, Qdrant's engine, a chat model) run as supervised children; `compose` builds
all services in one process, or starts one process for each.
"""

from strata.shared import fork_safety as _before_grpc  # noqa: F401 - gRPC is imported after it

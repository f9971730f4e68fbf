"""Recall memory: all messages of agents, and the context windows over them."""

from strata.shared import fork_safety as _before_grpc  # noqa: F401 - gRPC is imported after it

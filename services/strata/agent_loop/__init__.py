"""The agent loop service: agents, conversations, steps, and the calls to chat models."""

from strata.shared import fork_safety as _before_grpc  # noqa: F401 - gRPC is imported after it

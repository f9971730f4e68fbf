"""Tool execution: the registry of tools, and the execution of the calls of agents."""

from strata.shared import fork_safety as _before_grpc  # noqa: F401 - gRPC is imported after it

"""Tool execution: the registry of tools, and the running of the calls that agents make."""

from strata.shared import fork_safety as _before_grpc  # noqa: F401 - gRPC is imported after it

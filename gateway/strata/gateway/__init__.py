"""The gateway: API keys, quotas, runs with their event log, and the proxy to public services."""

from strata.shared import fork_safety as _before_grpc  # noqa: F401 - gRPC is imported after it

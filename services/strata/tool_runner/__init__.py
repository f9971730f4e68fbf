"""The tool runner: runs code of tools in a sandbox. It has no database and calls no service."""

from strata.shared import fork_safety as _before_grpc  # noqa: F401 - gRPC is imported after it

"""The command line of Strata."""

from strata.shared import fork_safety as _before_grpc  # noqa: F401 - gRPC is imported after it

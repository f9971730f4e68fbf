"""The edge: keys, quotas, runs and their event log, and the proxy to every public service."""

from strata.shared import fork_safety as _before_grpc  # noqa: F401 - says why itself

"""The command line of Strata; with ``compose`` also what it starts."""

from strata.shared import fork_safety as _before_grpc  # noqa: F401 - says why itself

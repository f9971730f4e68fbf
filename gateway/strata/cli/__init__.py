"""The command line of Strata; with ``compose`` also what it starts."""

from strata.shared import forks as _before_grpc  # noqa: F401 - says why itself

"""The command line of Strata; ``compose`` starts engines and services."""

from strata.shared import fork_safety as _before_grpc  # noqa: F401 - says why itself

"""Recall memory: every message ever stored, and the context windows over them."""

from strata.shared import forks as _before_grpc  # noqa: F401 - says why itself

"""Engines that a laptop runs by itself: PostgreSQL and Qdrant's engine as supervised children."""

from strata.shared import fork_safety as _before_grpc  # noqa: F401 - says why itself

"""The embedded engines: PostgreSQL, Qdrant's engine and a chat model as supervised children."""

from strata.shared import fork_safety as _before_grpc  # noqa: F401 - says why itself

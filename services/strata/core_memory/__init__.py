"""The core memory room: labelled blocks of text that the model always sees, with their history."""

from strata.shared import forks as _before_grpc  # noqa: F401 - says why itself

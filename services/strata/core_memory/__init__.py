"""The core memory service: labelled blocks of text that the model always sees, with history."""

from strata.shared import fork_safety as _before_grpc  # noqa: F401 - gRPC is imported after it

"""The error of a cancelled turn whose last step cannot be stored yet."""

from __future__ import annotations

from strata.protocol.errors import StrataError, UnavailableError

_KEY = "step"
_NOT_STORED = "not stored"


def step_not_stored() -> UnavailableError:
    """Returns the error: another attempt of the cancelled run has to store its journalled step."""
    return UnavailableError(
        "The last step of the cancelled run cannot be stored while recall is away.",
        metadata={_KEY: _NOT_STORED},
    )


def is_step_not_stored(error: object) -> bool:
    """Whether an error was made by `step_not_stored`."""
    return isinstance(error, StrataError) and error.metadata.get(_KEY) == _NOT_STORED

"""The beginnings of refusals, by which a later dispatch recognises calls that were not run.

The texts are those of docs/wire-format.md#refused-calls.
"""

from __future__ import annotations

from strata.shared.tool_arguments import INVALID

CONSTRAINT = "[ToolConstraintError]"
NOT_JSON = "The arguments are not valid JSON"
TOO_DEEP = "The arguments are nested deeper"
NOT_AN_OBJECT = "The arguments must be a JSON object"
INVALID_PREFILLED = "Invalid prefilled tool arguments from tool rules"
"""For arguments that a rule has wrong."""
NOT_RUN = "The tool could not be run:"
NOT_APPROVED = "The call needs the approval of a person"
BY_CLIENT = "The call is made by the client"
"""For calls of the client's tools that it was not asked for, or has not made."""
DENIED = "Error: request to call tool denied."
"""For calls that a person, or the deadline, has denied."""
NOT_STARTED_WITH = "The call was not started:"
"""For calls that waited together with such calls."""

_ALL = (
    CONSTRAINT,
    NOT_JSON,
    TOO_DEEP,
    NOT_AN_OBJECT,
    INVALID_PREFILLED,
    NOT_RUN,
    NOT_APPROVED,
    BY_CLIENT,
    INVALID,
    DENIED,
    NOT_STARTED_WITH,
)


def is_refusal(text: object) -> bool:
    """Says whether a text of the system refuses a call."""
    return isinstance(text, str) and text.startswith(_ALL)

"""First words of the returns of refused calls, by which later dispatches recognise them.

docs/wire-format.md#refused-calls lists the texts.
"""

from __future__ import annotations

from strata.shared.tool_arguments import INVALID

CONSTRAINT = "[ToolConstraintError]"
NOT_JSON = "The arguments are not valid JSON"
TOO_DEEP = "The arguments are nested deeper"
NOT_AN_OBJECT = "The arguments must be a JSON object"
INVALID_PREFILLED = "Invalid prefilled tool arguments from tool rules"
"""For invalid arguments in a rule."""
NOT_RUN = "The tool could not be run:"
NOT_APPROVED = "The call needs the approval of a person"
BY_CLIENT = "The call is made by the client"
"""For calls of client tools that the client was not asked for, or did not make."""
DENIED = "Error: request to call tool denied."
"""For calls that were denied by a person or at the deadline."""
NOT_STARTED_WITH = "The call was not started:"
"""For calls that waited for the decision about other calls of their reply."""

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
    """Returns whether a return written by the system refuses a call."""
    return isinstance(text, str) and text.startswith(_ALL)

"""Values that people write into forms and addresses."""

from __future__ import annotations

from strata.protocol.errors import FieldViolation, InvalidArgumentError
from strata.shared.number_text import is_whole_number

MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1


def whole_number(text: str, field: str, message: str, *, most: int = MAX_INT32) -> int:
    """Returns a number that is not negative; 0 if the text is empty.

    Args:
        text: The text of the field.
        field: The name of the field.
        message: First sentence of the error, such as "The group was not saved."
        most: The largest number.

    Raises:
        InvalidArgumentError: The text is not such a number.
    """
    digits = text.strip()
    if not digits:
        return 0
    if is_whole_number(digits) and len(digits) <= len(str(most)):
        number = int(digits)
        if number <= most:
            return number
    raise InvalidArgumentError(
        message,
        violations=[FieldViolation(field, f"{text!r} is not a whole number of at most {most}")],
    )

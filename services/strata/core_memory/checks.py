"""Checks of request fields that collect everything that is wrong before they complain."""

from __future__ import annotations

from strata.shared.errors import FieldViolation, InvalidArgumentError, Reason
from strata.shared.ids import check_id


class Checks:
    """What is wrong with one request so far. Every method returns the value it was given."""

    def __init__(self) -> None:
        self._violations: list[FieldViolation] = []
        self._id_errors: list[InvalidArgumentError] = []

    def fail(self, field: str, description: str) -> None:
        """Notes a wrong field."""
        self._violations.append(FieldViolation(field, description))

    def id(self, value: str, prefix: str, field: str, *, optional: bool = False) -> str:
        """Checks an id of the kind `prefix`."""
        if value or not optional:
            try:
                check_id(value, prefix, field=field)
            except InvalidArgumentError as error:
                self._id_errors.append(error)
        return value

    def text(self, value: str, field: str, *, most: int, required: bool = False) -> str:
        """Checks a text of at most `most` characters."""
        if required and not value:
            self.fail(field, "is required")
        if len(value) > most:
            self.fail(field, f"has {len(value)} characters, at most {most} are allowed")
        # PostgreSQL has no text with this character in it.
        if "\0" in value:
            self.fail(field, "must not hold the character U+0000")
        return value

    def number(self, value: int, field: str, *, least: int, most: int) -> int:
        """Checks a number."""
        if not least <= value <= most:
            self.fail(field, f"must be from {least} to {most}, got {value}")
        return value

    def done(self) -> None:
        """Raises if anything was wrong.

        Raises:
            InvalidArgumentError: ``INVALID_ID`` if only ids were, else ``INVALID_FIELD``.
        """
        if len(self._id_errors) == 1 and not self._violations:
            raise self._id_errors[0]
        violations = [violation for error in self._id_errors for violation in error.violations]
        violations += self._violations
        if not violations:
            return
        shown = "; ".join(f"{violation.field} {violation.description}" for violation in violations)
        raise InvalidArgumentError(
            f"The request is wrong: {shown}.",
            reason=Reason.INVALID_FIELD if self._violations else Reason.INVALID_ID,
            violations=violations,
        )

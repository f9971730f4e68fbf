"""Checks of request fields that report all violations of a request together."""

from __future__ import annotations

from strata.protocol.errors import FieldViolation, InvalidArgumentError, Reason
from strata.shared.ids import check_id


class Checks:
    """Collects the violations of one request. Every check returns the value that it checked."""

    def __init__(self) -> None:
        self._violations: list[FieldViolation] = []
        self._id_errors: list[InvalidArgumentError] = []

    def fail(self, field: str, description: str) -> None:
        """Adds a violation."""
        self._violations.append(FieldViolation(field, description))

    def id(self, value: str, prefix: str, field: str, *, optional: bool = False) -> str:
        """Checks that an id is well-formed and has the prefix `prefix`."""
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
        # PostgreSQL cannot store this character in text.
        if "\0" in value:
            self.fail(field, "must not hold the character U+0000")
        return value

    def number(self, value: int, field: str, *, least: int, most: int) -> int:
        """Checks that a number is in the range from `least` to `most`, both included."""
        if not least <= value <= most:
            self.fail(field, f"must be from {least} to {most}, got {value}")
        return value

    def done(self) -> None:
        """Raises an error with all violations, if there are any.

        Raises:
            InvalidArgumentError: ``INVALID_ID`` if all violations are ids, else ``INVALID_FIELD``.
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

"""Checks of request fields that report all violations of a request together.

A converter makes one `Checks`, passes every field through it, and calls `done` before it uses the
values. A rule that several services have (names, request ids, times) is a method here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from strata.protocol.errors import FieldViolation, InvalidArgumentError, Reason, invalid_fields
from strata.shared.blank_text import BLANK, is_blank
from strata.shared.idempotency.keys import request_id_violations
from strata.shared.ids import check_id
from strata.shared.names import MAX_NAME_CHARS, name_problems


class Checks:
    """Collects the violations of one request. Methods that take a value return it."""

    def __init__(self) -> None:
        self._violations: list[FieldViolation] = []
        self._id_errors: list[InvalidArgumentError] = []

    def fail(self, field: str, description: str) -> None:
        """Adds a violation."""
        self._violations.append(FieldViolation(field, description))

    def unless(self, valid: bool, field: str, description: str) -> None:
        """Adds a violation unless the field is valid."""
        if not valid:
            self.fail(field, description)

    def extend(self, violations: Iterable[FieldViolation]) -> None:
        """Adds the violations that another function has found."""
        self._violations.extend(violations)

    def id(self, value: str, prefix: str, field: str, *, optional: bool = False) -> str:
        """Checks that an id is well-formed and has the prefix `prefix`."""
        if value or not optional:
            try:
                check_id(value, prefix, field=field)
            except InvalidArgumentError as error:
                self._id_errors.append(error)
        return value

    def ids(
        self, values: Iterable[str], prefix: str, field: str, *, most: int | None = None
    ) -> list[str]:
        """Checks a list of ids with the prefix `prefix`; None for `most` allows any number."""
        ids = list(values)
        if most is not None:
            self.unless(len(ids) <= most, field, f"has {len(ids)}, at most {most}")
        for index, value in enumerate(ids[:most]):
            self.id(value, prefix, f"{field}[{index}]")
        return ids

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

    def texts(
        self, values: Iterable[str], field: str, problem_of: Callable[[str], str], *, most: int
    ) -> list[str]:
        """Checks a list of at most `most` texts.

        Args:
            values: The texts.
            field: Path of the list.
            problem_of: Returns the problem of a text; empty if it is valid.
            most: Maximum number of texts.
        """
        texts = list(values)
        self.unless(len(texts) <= most, field, f"has {len(texts)}, at most {most}")
        for index, text in enumerate(texts[:most]):
            problem = problem_of(text)
            self.unless(not problem, f"{field}[{index}]", problem)
        return texts

    def not_blank(self, value: str, field: str) -> str:
        """Checks that a text has a visible character."""
        self.unless(not is_blank(value), field, BLANK)
        return value

    def query(self, value: str, field: str, *, most: int) -> str:
        """Checks the text of a search."""
        self.not_blank(value, field)
        self.unless(len(value) <= most, field, f"must not exceed {most} characters")
        return value

    def name(self, value: str, field: str, *, most: int = MAX_NAME_CHARS) -> str:
        """Checks a name by the rule of `strata.shared.names`; it may be empty."""
        for problem in name_problems(value, most=most):
            self.fail(field, problem)
        return value

    def request_id(self, value: str, field: str = "request_id") -> str:
        """Checks the request id of a client; it may be empty."""
        self.extend(request_id_violations(value, field))
        return value

    def number(self, value: int, field: str, *, least: int, most: int) -> int:
        """Checks that a number is in the range from `least` to `most`, both included."""
        if not least <= value <= most:
            self.fail(field, f"must be from {least} to {most}, got {value}")
        return value

    def not_negative(self, value: int, field: str) -> int:
        """Checks that a number is 0 or more."""
        self.unless(value >= 0, field, "must not be negative")
        return value

    def exactly_one(self, message: Message, *fields: str) -> None:
        """Checks that exactly one of the fields is set; a violation names the first one."""
        count = sum(bool(getattr(message, field)) for field in fields)
        self.unless(count == 1, fields[0], f"set exactly one of {' and '.join(fields)}")

    def time(self, value: Timestamp, field: str) -> datetime | None:
        """Returns a time in UTC; None, with a violation, if it is out of range."""
        try:
            return value.ToDatetime(tzinfo=UTC)
        except (ValueError, OverflowError):
            self.fail(field, "is not a time between the years 1 and 9999")
            return None

    def optional_time(self, message: Message, field: str) -> datetime | None:
        """Returns the time of a field in UTC; None if it is not set or out of range."""
        return self.time(getattr(message, field), field) if message.HasField(field) else None

    def time_range(self, start: datetime | None, end: datetime | None) -> None:
        """Checks that ``end_time`` is after ``start_time`` if both are set."""
        valid = start is None or end is None or start < end
        self.unless(valid, "end_time", "must be after start_time")

    def done(self) -> None:
        """Raises an error with all violations, if there are any.

        Raises:
            InvalidArgumentError: ``INVALID_ID`` if all violations are ids, else ``INVALID_FIELD``.
        """
        if len(self._id_errors) == 1 and not self._violations:
            raise self._id_errors[0]
        violations = [violation for error in self._id_errors for violation in error.violations]
        violations += self._violations
        if violations:
            reason = Reason.INVALID_FIELD if self._violations else Reason.INVALID_ID
            raise invalid_fields(violations, reason)

"""Pages with a form that is shown again, filled in, with errors beside its fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response

from strata.gateway.console.forms import FormFields
from strata.gateway.console.visits import Visit
from strata.gateway.http.errors import code_of_status, http_status_of
from strata.protocol.errors import (
    AbortedError,
    FieldViolation,
    InvalidArgumentError,
    StrataError,
    UnauthenticatedError,
)
from strata.protocol.status import code_of

_AFTER_FIELD = (".", "[")


@dataclass(frozen=True)
class Problems:
    """The problems of a form.

    Attributes:
        error: The error of the call; None for a form that was not sent yet.
        others: Violations that belong to no field of the form.
    """

    error: StrataError | None = None
    others: Sequence[FieldViolation] = ()
    _beside: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def beside(self, name: str) -> Sequence[str]:
        """Returns the problems of a field."""
        return self._beside.get(name, ())


@dataclass(frozen=True)
class FormPage:
    """A page with a form.

    Attributes:
        template: Its template.
        fields: Names of fields of the form by the fields of the request that they set: a
            violation of ``server.headers`` or of ``server.headers["x"]`` is shown beside the field
            that ``server.headers`` is mapped to.
    """

    template: str
    fields: Mapping[str, str]

    def show(self, visit: Visit, form: FormFields, **values: Any) -> Response:
        """Returns the page with a form that can be sent."""
        return visit.page(self.template, form=form, problems=Problems(), **values)

    def show_again(self, visit: Visit, error: StrataError, **values: Any) -> Response:
        """Returns the page with the form that was sent and its problems.

        Raises:
            UnauthenticatedError: The key is no longer valid, so the session is over.
        """
        if isinstance(error, UnauthenticatedError):
            raise error
        status = http_status_of(code_of_status(code_of(error)))
        problems = self._problems(error)
        return visit.page(
            self.template, status=status, form=visit.form, problems=problems, **values
        )

    def _problems(self, error: StrataError) -> Problems:
        by_field: dict[str, list[str]] = {}
        without_field = []
        for violation in error.violations:
            name = self._field_of(violation.field)
            if name:
                by_field.setdefault(name, []).append(violation.description)
            else:
                without_field.append(violation)
        return Problems(error, without_field, by_field)

    def _field_of(self, path: str) -> str:
        """Returns the field of the form that sets a field of the request; empty if none does."""
        fields = [
            field
            for field in self.fields
            if path == field or path.startswith(tuple(field + mark for mark in _AFTER_FIELD))
        ]
        return self.fields[max(fields, key=len)] if fields else ""


def check_unchanged(form_state: str, present_state: str, what: str) -> None:
    """Checks that the object of a form has not changed since the form was shown.

    Args:
        form_state: Identifies the state that the form shows.
        present_state: Identifies the stored state.
        what: The kind of the changed object, such as ``schedule``.

    Raises:
        AbortedError: The states differ.
    """
    if form_state != present_state:
        raise AbortedError(
            f"The {what} was changed after this form was opened. Open the form again to see its "
            "present state; your text is kept below."
        )


def refusal(message: str, name: str, problem: str) -> InvalidArgumentError:
    """Returns the error for one field of a form.

    Args:
        message: The action that was not done, as a sentence.
        name: The field.
        problem: The problem of the field.
    """
    return InvalidArgumentError(message, violations=[FieldViolation(name, problem)])


def lines_in(form: FormFields, name: str) -> list[str]:
    """Returns the lines of a field that are not blank, without the blanks around them."""
    return [line.strip() for line in form.text(name).split("\n") if line.strip()]

"""Takes the values of secrets out of what a tool gave back."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

REDACTED = "[secret {name}]"


class Redactor:
    """Finds secrets as they are and in the forms that requests write them in.

    A tool that wants to give a secret away can disguise it; this is against mistakes, such as an
    address with a key in an error message. What must not leave has no place in a tool's hands.

    Args:
        secrets: Values by name; none of them empty.
    """

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._names = {form: name for name, value in secrets.items() for form in _forms(value)}
        # The longest first: one secret may be part of another.
        forms = sorted(self._names, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, forms))) if forms else None

    def text(self, text: str) -> str:
        """Returns a text with each secret replaced by its name."""
        if self._pattern is None:
            return text
        return self._pattern.sub(
            lambda found: REDACTED.format(name=self._names[found.group()]), text
        )

    def value(self, value: Any) -> Any:
        """Returns a JSON value with each secret in it replaced."""
        if self._pattern is None:
            return value
        match value:
            case str():
                return self.text(value)
            case list():
                return [self.value(item) for item in value]
            case dict():
                return {self.text(name): self.value(item) for name, item in value.items()}
            case bool() | None:
                return value
            case _:
                shown = self.text(str(value))
                return value if shown == str(value) else shown


def _forms(value: str) -> Iterable[str]:
    raw = value.encode()
    encoded = base64.b64encode(raw).decode()
    return {
        value,
        quote(value, safe=""),
        quote_plus(value),
        raw.hex(),
        encoded,
        encoded.rstrip("="),
        base64.urlsafe_b64encode(raw).decode().rstrip("="),
        # As `repr` and JSON write it.
        repr(value)[1:-1],
        value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n"),
    }

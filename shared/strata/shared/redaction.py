"""Removes the values of secrets from texts that are shown to others or stored.

The answer of a provider, an MCP server or a tool can repeat the key that it was sent. Every such
text passes through a `Redactor` before it is truncated, because half of a key is harder to detect.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, quote_plus, unquote, urlsplit

REDACTED = "[secret {name}]"
MIN_KEY_CHARS = 6
"""Shorter keys are not redacted: they are placeholders, or ordinary words."""

# Parts of long values are redacted as well, because the text may hold a truncated key.
_MIN_CUT_FORM = 20
_MIN_CUT_CHARS = 12
_UNSAFE_IN_HTML = re.compile("[&<>'+]")


class Redactor:
    """Replaces secrets in texts: in plain text, in encoded forms, and truncated.

    A truncated form is recognised if at least half of it, and at least 12 characters, appears in
    the text: its beginning or its end.

    This protects against mistakes, such as an error message with a key in a URL. It does not stop
    a malicious tool, which can disguise a secret: do not give such a tool a secret.

    Args:
        secrets: Values by name; none of them empty.
    """

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._names = {
            form: name
            for name, value in secrets.items()
            for stored in (value, *_stripped(value))
            for form in _forms(stored)
        }
        # The longest first: one secret may be part of another.
        self._longest_first = sorted(self._names, key=len, reverse=True)
        forms = self._longest_first
        self._pattern = re.compile("|".join(map(re.escape, forms))) if forms else None
        # Most texts of a large JSON value are short, and a search for all forms takes 10 us.
        self._shortest = min(map(len, forms), default=0)
        if forms and len(forms[0]) >= _MIN_CUT_FORM:
            self._shortest = min(self._shortest, _MIN_CUT_CHARS)

    def text(self, text: str) -> str:
        """Returns a text with each secret replaced by its name."""
        if self._pattern is None or len(text) < self._shortest:
            return text
        text = self._pattern.sub(
            lambda match: REDACTED.format(name=self._names[match.group()]), text
        )
        return self._without_cut_forms(text)

    def _without_cut_forms(self, text: str) -> str:
        spans = sorted(
            (start, end, form)
            for form in self._longest_first
            if len(form) >= _MIN_CUT_FORM
            for start, end in _cut_spans(text, form)
        )
        pieces, at = [], 0
        for start, end, form in spans:
            # Overlapping spans, such as two forms of one key, get one replacement.
            if start >= at:
                pieces += [text[at:start], REDACTED.format(name=self._names[form])]
            at = max(at, end)
        return "".join([*pieces, text[at:]])

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
                redacted = self.text(str(value))
                return value if redacted == str(value) else redacted


def key_redactor(key: str, url: str = "") -> Redactor:
    """Returns a redactor for an endpoint's credentials, to apply to the endpoint's answers.

    Args:
        key: The key that is sent; empty for none.
        url: The endpoint's address, which can contain a password.
    """
    password = urlsplit(url).password or ""
    credentials = {"API key": key, "password of the address": unquote(password)}
    return Redactor(
        {name: value for name, value in credentials.items() if len(value) >= MIN_KEY_CHARS}
    )


def _cut_spans(text: str, form: str) -> Iterable[tuple[int, int]]:
    """Yields the spans in which a text has the beginning or the end of a form."""
    least = max(_MIN_CUT_CHARS, (len(form) + 1) // 2)
    start = text.find(form[:least])
    while start != -1:
        end = start + least
        while end < len(text) and end - start < len(form) and text[end] == form[end - start]:
            end += 1
        yield start, end
        start = text.find(form[:least], end)
    offset = text.find(form[-least:])
    while offset != -1:
        start, end = offset, offset + least
        while start > 0 and end - start < len(form) and text[start - 1] == form[start - 1 - end]:
            start -= 1
        yield start, end
        offset = text.find(form[-least:], end)


def _stripped(value: str) -> Iterable[str]:
    """Yields the value as users send it that was stored with blanks or a line end around it."""
    stripped = value.strip()
    if stripped != value and len(stripped) >= MIN_KEY_CHARS:
        yield stripped


def _forms(value: str) -> Iterable[str]:
    raw = value.encode("utf-8", "replace")
    encoded = base64.b64encode(raw).decode()
    urlsafe = base64.urlsafe_b64encode(raw).decode()
    percent = quote(value, safe="")
    return {
        value,
        percent,
        quote_plus(value),
        re.sub("%[0-9A-F]{2}", lambda match: match.group().lower(), percent),
        raw.hex(),
        raw.hex().upper(),
        encoded,
        encoded.rstrip("="),
        urlsafe.rstrip("="),
        *_within_base64(raw),
        repr(value)[1:-1],
        html.escape(value),
        *_in_json(value),
    }


def _in_json(value: str) -> Iterable[str]:
    """Yields the value as JSON encoders write it, also for a JSON text within a JSON string."""
    for ascii_only in (False, True):
        plain = json.dumps(value, ensure_ascii=ascii_only)[1:-1]
        for form in (
            plain,
            plain.replace("/", "\\/"),
            # JSON that is embedded in HTML escapes these characters, in upper or lower case.
            _UNSAFE_IN_HTML.sub(lambda match: f"\\u{ord(match.group()):04x}", plain),
            _UNSAFE_IN_HTML.sub(lambda match: f"\\u{ord(match.group()):04X}", plain),
        ):
            yield form
            yield json.dumps(form, ensure_ascii=False)[1:-1]


def _within_base64(raw: bytes) -> Iterable[str]:
    """Yields the parts of the value that appear in the base64 of a longer text, as ``user:key``."""
    if len(raw) < _MIN_CUT_CHARS:
        return
    for before in (0, 1, 2):
        # Four characters encode three bytes; characters shared with neighbours are left out.
        first = -(-before * 4 // 3)
        last = (before + len(raw)) * 4 // 3
        padded = bytes(before) + raw + bytes(2)
        yield base64.b64encode(padded).decode()[first:last]
        yield base64.urlsafe_b64encode(padded).decode()[first:last]

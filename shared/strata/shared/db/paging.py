"""Pages and page tokens of lists (AIP-158).

A token contains the sort key of the last row of a page. The next page is read by index from there,
so rows inserted meanwhile do not shift it. A page ends at a number of rows or at `PAGE_BYTES`,
whichever comes first, so that it fits into a gRPC message. A token is bound to its list (`scope`:
the method and its filter). It is not signed: the types of its parts are checked, and row-level
security limits the rows that a forged token can reach.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, is_dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any, Generic, TypeVar

from strata.protocol.errors import FieldViolation, InvalidArgumentError, Reason
from strata.shared.json_text import parse_json
from strata.shared.record_fields import field_reader
from strata.shared.settings import MIB

Key = str | int | datetime
_Row = TypeVar("_Row")
_VERSION = 1
_MAX_TOKEN = 2048

PAGE_BYTES = 2 * MIB
"""Approximate bytes of one page; half of the message size that clients accept by default."""
# Tags, lengths and numbers of a field in the wire format.
_FIELD_BYTES = 12


@dataclass(frozen=True)
class Page(Generic[_Row]):
    """Some rows of a list, and the token of the next page; empty at the end."""

    rows: Sequence[_Row]
    next_page_token: str = ""

    @classmethod
    def cut(
        cls, rows: Sequence[_Row], limit: int, scope: str, key: Callable[[_Row], Sequence[Key]]
    ) -> Page[_Row]:
        """Makes a page from the rows of a query that asked for one row more than `limit`.

        Args:
            rows: The rows of the query, at most `limit + 1`.
            limit: The size of the page.
            scope: See `encode_page_token`.
            key: Returns the sort key of a row.
        """
        limit = rows_that_fit(rows, limit)
        if len(rows) <= limit:
            return cls(rows)
        return cls(rows[:limit], encode_page_token(scope, key(rows[limit - 1])))


def rows_that_fit(
    rows: Iterable[object], limit: int | None = None, *, max_bytes: int = PAGE_BYTES
) -> int:
    """Returns how many rows, from the first on, fit into a page; at least one.

    Args:
        rows: Rows, as dataclasses, mappings, sequences, texts or numbers.
        limit: Maximum number of rows; None for all.
        max_bytes: Maximum bytes; a larger first row still counts as fitting.
    """
    count = size = 0
    for row in rows:
        size += approximate_bytes(row)
        if count == limit or (count and size > max_bytes):
            break
        count += 1
    return max(count, 1)


def approximate_bytes(value: object) -> int:
    """Returns approximately how many bytes a value takes in a message; rather too many."""
    size = 0
    waiting: list[Iterable[object]] = [(value,)]
    while waiting:
        for item in waiting.pop():
            size += _FIELD_BYTES
            kind: Any = type(item)
            # The abstract types come last: to check for one calls functions, for each of many
            # values.
            match item:
                case str() as text:
                    size += len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
                case None | int() | float() | datetime():
                    pass
                case bytes() as data:
                    size += len(data)
                case _ if read := _reader(kind):
                    waiting.append(read(item))
                case dict() | Mapping() as members:
                    waiting += (members, members.values())
                case tuple() | list() | Sequence() | AbstractSet() as items:
                    waiting.append(items)
                case _:
                    pass
    return size


@cache
def _reader(kind: Any) -> Callable[[Any], tuple[Any, ...]] | None:
    """Returns a function that returns the values of a data class; None for another type."""
    is_record: bool = is_dataclass(kind)
    return field_reader(kind) if is_record else None


def page_limit(page_size: int, *, default: int = 50, maximum: int = 1000) -> int:
    """Returns how many rows a request for `page_size` gets: 0 means the default.

    Raises:
        InvalidArgumentError: It is negative.
    """
    if page_size < 0:
        violation = FieldViolation("page_size", "must not be negative")
        raise InvalidArgumentError("page_size must not be negative", violations=[violation])
    return min(page_size or default, maximum)


def encode_page_token(scope: str, key: Sequence[Key]) -> str:
    """Returns the token of the page after the row with this sort key.

    Args:
        scope: Identifies the list: the method and every filter and order of the request.
        key: The sort key of the last row of the page.
    """
    fields = [_MARKS[type(part)](part) for part in key]
    text = json.dumps([_VERSION, _digest(scope), *fields], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_page_token(scope: str, token: str, kinds: Sequence[type]) -> tuple[Key, ...] | None:
    """Returns the sort key in a token, None for the empty token of the first page.

    Args:
        scope: The same as for `encode_page_token`.
        token: The token that the caller sent.
        kinds: The types of the key's parts: str, int or datetime.

    Raises:
        InvalidArgumentError: The token is not of this list (``INVALID_PAGE_TOKEN``).
    """
    if not token:
        return None
    try:
        fields = _parse(token, scope)
        return tuple(_READERS[kind](part) for kind, part in zip(kinds, fields, strict=True))
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise InvalidArgumentError(
            "page_token is not one that this list returned",
            reason=Reason.INVALID_PAGE_TOKEN,
            violations=[
                FieldViolation(
                    "page_token", "send the next_page_token of the same request, or nothing"
                )
            ],
        ) from None


def _parse(token: str, scope: str) -> list[object]:
    if len(token) > _MAX_TOKEN:
        raise ValueError("too long")
    text = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    match parse_json(text):
        case [version, digest, *fields] if version == _VERSION and digest == _digest(scope):
            return fields
    raise ValueError("not of this list")


def _digest(scope: str) -> str:
    return hashlib.sha256(scope.encode()).hexdigest()[:12]


def _read_text(part: object) -> str:
    # PostgreSQL's text refuses NUL only; an unpaired surrogate has no UTF-8.
    match part:
        case str() if "\0" not in part:
            part.encode()
            return part
    raise TypeError("not a text")


def _read_number(part: object) -> int:
    match part:
        case int() if not isinstance(part, bool) and -(2**63) <= part < 2**63:
            return part
    raise TypeError("not a number")


def _read_time(part: object) -> datetime:
    moment = datetime.fromisoformat(_read_text(part))
    if moment.tzinfo is None:
        raise ValueError("no time zone")
    return moment.astimezone(UTC)


_MARKS: dict[type, Callable[..., str | int]] = {str: str, int: int, datetime: datetime.isoformat}
_READERS: dict[type, Callable[[object], Key]] = {
    str: _read_text,
    int: _read_number,
    datetime: _read_time,
}

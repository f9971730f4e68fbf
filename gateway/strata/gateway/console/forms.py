"""Forms that browsers send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from strata.gateway.http.calls import BodyTooLargeError, read_body
from strata.protocol.errors import InvalidArgumentError

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

_MAX_FIELDS = 1000


@dataclass(frozen=True, slots=True)
class SentFile:
    """A file of a form.

    Attributes:
        name: Its name, as the browser sends it.
        data: Its bytes.
    """

    name: str
    data: bytes = field(repr=False)


@dataclass(frozen=True)
class FormFields:
    """The fields of a form; a missing field is empty.

    Attributes:
        fields: Their values by name.
        files: The files of a form that is sent in parts.
    """

    fields: Mapping[str, list[str]] = field(default_factory=dict)
    files: Sequence[SentFile] = ()

    def text(self, name: str) -> str:
        """Returns the value of a field, with line ends as they are stored."""
        return self.fields.get(name, [""])[0].replace("\r\n", "\n")

    def texts(self, name: str) -> list[str]:
        """Returns all values of a field that are not empty."""
        return [value for value in self.fields.get(name, []) if value]

    def checked(self, name: str) -> bool:
        """Returns whether a checkbox is checked."""
        return bool(self.text(name))


async def read_form(request: Request, max_bytes: int, *, with_files: bool = True) -> FormFields:
    """Returns the form in the body of a request.

    A body that is not a form is not read; the result is then an empty form.

    Args:
        request: The request.
        max_bytes: Larger forms are refused.
        with_files: Whether a form in parts, which can have files, is read.

    Raises:
        InvalidArgumentError: It is larger, cannot be read, or has too many fields.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind == "application/x-www-form-urlencoded":
        return FormFields(await _fields(request, max_bytes))
    if with_files and kind == "multipart/form-data":
        return await _form_in_parts(request, max_bytes)
    return FormFields()


async def _fields(request: Request, max_bytes: int) -> dict[str, list[str]]:
    try:
        body = await read_body(request, max_bytes)
        return parse_qs(
            body.decode(), keep_blank_values=True, strict_parsing=False, max_num_fields=_MAX_FIELDS
        )
    except (BodyTooLargeError, ValueError) as error:
        raise InvalidArgumentError(f"The form cannot be read: {error}") from error


async def _form_in_parts(request: Request, max_bytes: int) -> FormFields:
    """Returns a form with files. Nothing of it is written to a disk."""
    try:
        body = await read_body(request, max_bytes)
    except BodyTooLargeError as error:
        raise InvalidArgumentError(
            f"The form and its files have more than the {max_bytes:,} bytes that are accepted"
            " together."
        ) from error
    _, options = parse_options_header(request.headers["content-type"])
    if b"boundary" not in options:
        raise InvalidArgumentError("The form cannot be read: it names no boundary.")
    parts = _Parts()
    try:
        parser = MultipartParser(options[b"boundary"], parts.callbacks())
        parser.write(body)
        parser.finalize()
        return parts.form()
    except (FormParserError, ValueError) as error:
        raise InvalidArgumentError(f"The form cannot be read: {error}") from error


class _Parts:
    """Collects the parts of a form."""

    def __init__(self) -> None:
        self._parts: list[tuple[dict[bytes, bytes], bytearray]] = []
        self._name = bytearray()
        self._value = bytearray()

    def callbacks(self) -> MultipartCallbacks:
        """Returns the callbacks for a parser."""
        return {
            "on_part_begin": self._begin,
            "on_header_begin": self._begin_header,
            "on_header_field": lambda data, start, end: self._name.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
            "on_header_end": self._end_header,
            "on_part_data": lambda data, start, end: self._parts[-1][1].extend(data[start:end]),
        }

    def form(self) -> FormFields:
        """Returns the form.

        Raises:
            ValueError: A part has no name, or a name or the value of a field is not UTF-8.
        """
        fields: dict[str, list[str]] = {}
        files = []
        for options, data in self._parts:
            if b"name" not in options:
                raise ValueError("a part has no name")
            if b"filename" not in options:
                fields.setdefault(options[b"name"].decode(), []).append(data.decode())
            elif options[b"filename"]:
                # A browser sends a file without a name for a field without one.
                files.append(SentFile(options[b"filename"].decode(), bytes(data)))
        return FormFields(fields, files)

    def _begin(self) -> None:
        if len(self._parts) == _MAX_FIELDS:
            raise ValueError(f"it has more than {_MAX_FIELDS} parts")
        self._parts.append(({}, bytearray()))

    def _begin_header(self) -> None:
        self._name.clear()
        self._value.clear()

    def _end_header(self) -> None:
        if self._name.lower() == b"content-disposition":
            _, options = parse_options_header(bytes(self._value))
            self._parts[-1][0].update(options)

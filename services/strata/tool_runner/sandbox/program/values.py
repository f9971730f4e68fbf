"""Converts the return value of a tool to strict JSON, and exceptions to text."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import json
import pathlib
import traceback
import uuid

_MAX_MESSAGE = 2_000
_MAX_TRACEBACK = 4_000
_MAX_TYPE = 100
MAX_DEPTH = 100
# Start of the message of the JSON encoder.
_NOT_FINITE = "Out of range float values"


class BadResult(Exception):  # noqa: N818 - the name of the status
    """The returned value cannot be converted to JSON; the message has the reason."""


def _plain(value: object) -> object:
    """Converts a value that JSON does not support; called by the encoder."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    dump = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        return dump(mode="json")
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, uuid.UUID | decimal.Decimal | pathlib.PurePath):
        return str(value)
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        # Numbers and arrays of NumPy, in which calculations with pandas end as well.
        return value.tolist()
    if isinstance(value, set | frozenset):
        raise BadResult("It contains a set, which has no order: return a list.")
    if isinstance(value, bytes | bytearray | memoryview):
        raise BadResult("It contains bytes: return text, for example base64.")
    raise BadResult(
        f"It contains a value of type {type(value).__name__}, which JSON does not support."
    )


def encode(value: object) -> bytes:
    """Returns a value as JSON in UTF-8.

    Tuples become lists, dataclasses and pydantic models objects, enumerations their values,
    dates, times, UUIDs, decimals and paths text; numbers and arrays of NumPy become numbers and
    lists; a key that is a number becomes text.

    Raises:
        BadResult: The value cannot be converted.
    """
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, default=_plain)
        return text.encode()
    except UnicodeEncodeError:
        raise BadResult("It contains text with a lone surrogate, which is not valid.") from None
    except RecursionError:
        raise BadResult(f"It is nested deeper than {MAX_DEPTH} levels.") from None
    except ValueError as error:
        message = _message_of(error)
        if message.startswith(_NOT_FINITE):
            raise BadResult(
                "It contains NaN or an infinite number, which JSON does not have: return None or"
                " text instead."
            ) from None
        raise BadResult(f"It cannot be converted to JSON: {message}") from None
    except TypeError as error:
        raise BadResult(f"It cannot be converted to JSON: {_message_of(error)}") from None


def _message_of(error: BaseException) -> str:
    # The tool defines the exception class, so its methods may raise, too.
    try:
        return str(error)[:_MAX_MESSAGE]
    except BaseException:  # noqa: BLE001
        return "(its message cannot be read)"


def describe(error: BaseException, skipped_frames: int) -> dict[str, str]:
    """Returns type, message and traceback of an exception, each truncated."""
    try:
        trace = error.__traceback__
        for _ in range(skipped_frames):
            trace = trace.tb_next if trace else None
        lines = traceback.format_exception(type(error), error, trace, limit=-8)
        text = "".join(lines)
        if len(text) > _MAX_TRACEBACK:
            text = "...\n" + text[-_MAX_TRACEBACK:]
    except BaseException:  # noqa: BLE001
        text = ""
    message = _message_of(error)
    if isinstance(error, SystemExit):
        message = f"The code called sys.exit({message})."
    return {"type": type(error).__name__[:_MAX_TYPE], "message": message, "traceback": text}

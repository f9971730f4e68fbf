"""Converts arguments of calls to fields of requests: short forms of ids, enumerations and messages.

Each short form has exactly one meaning. Values that are not unique, such as the label of a block in
a project, have no short form.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeAlias, TypeVar

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from strata.api.agent_loop.v1.agent_service_pb2 import ModelConfig
from strata.api.common.v1.message_pb2 import MessageInput
from strata.api.core_memory.v1.block_service_pb2 import NewBlock
from strata.client.images import user_message
from strata.client.tools import wrong_argument

MessageT = TypeVar("MessageT", bound=Message)

Blocks: TypeAlias = Mapping[str, str] | Iterable[NewBlock]
"""Blocks to create: texts by label, or whole blocks."""
Messages: TypeAlias = str | Iterable[MessageInput]
"""Messages: the text of one message of the user, or whole messages."""
Model: TypeAlias = str | ModelConfig
"""How a model is called: its handle, or the whole configuration."""
Time: TypeAlias = dt.datetime | Timestamp
"""A point in time; a `datetime` must have a time zone."""


class Identified(Protocol):
    """A message with an id, such as a block."""

    id: str


def id_of(value: str | Identified) -> str:
    """Returns the id of a message, or the id itself."""
    return value if isinstance(value, str) else value.id


def ids_of(values: Iterable[str | Identified], field: str) -> list[str]:
    """Returns the ids of messages.

    Raises:
        InvalidArgumentError: It is one text and not a list.
    """
    refuse_text(values, field)
    return [id_of(value) for value in values]


def texts_of(values: Iterable[str], field: str) -> list[str]:
    """Returns a list of texts.

    Raises:
        InvalidArgumentError: It is one text and not a list.
    """
    refuse_text(values, field)
    return list(values)


def blocks_of(blocks: Blocks) -> list[NewBlock]:
    """Returns blocks to create."""
    if isinstance(blocks, Mapping):
        return [NewBlock(label=label, value=value) for label, value in blocks.items()]
    return list(blocks)


def messages_of(messages: Messages) -> list[MessageInput]:
    """Returns messages; an empty text gives no message."""
    if isinstance(messages, str):
        return [user_message(messages)] if messages else []
    return list(messages)


def model_of(model: Model | None) -> ModelConfig | None:
    """Returns the configuration of a model."""
    return ModelConfig(handle=model) if isinstance(model, str) else model


def time_of(time: Time | None, field: str) -> Timestamp | None:
    """Returns a point in time.

    Raises:
        InvalidArgumentError: It has no time zone.
    """
    if not isinstance(time, dt.datetime):
        return time
    if time.tzinfo is None:
        raise wrong_argument(field, "must have a time zone")
    timestamp = Timestamp()
    timestamp.FromDatetime(time)
    return timestamp


def enum_of(enum: Any, value: str | int | None, field: str) -> Any:
    """Returns the number of an enumeration's value; 0 for None.

    Args:
        enum: The enumeration of the generated code.
        value: Its name without the prefix, in lower case, or its number.
        field: Name of the argument.

    Raises:
        InvalidArgumentError: There is no such value.
    """
    if value is None or not isinstance(value, str):
        return value or 0
    numbers = enum_names(enum)
    if (number := numbers.get(value.replace("-", "_"))) is None:
        raise wrong_argument(field, f"must be one of: {', '.join(numbers)}")
    return number


def enums_of(enum: Any, values: Iterable[str | int], field: str) -> list[Any]:
    """Returns the numbers of values of an enumeration, see `enum_of`.

    Raises:
        InvalidArgumentError: There is no such value, or it is one text and not a list.
    """
    refuse_text(values, field)
    return [enum_of(enum, value, field) for value in values]


def enum_names(enum: Any) -> dict[str, int]:
    """Returns the short names of an enumeration with their numbers, without UNSPECIFIED."""
    descriptor = enum.DESCRIPTOR
    unspecified = next(value.name for value in descriptor.values if value.number == 0)
    prefix = unspecified.removesuffix("UNSPECIFIED")
    return {
        value.name.removeprefix(prefix).lower(): value.number
        for value in descriptor.values
        if value.number
    }


def message_of(
    kind: type[MessageT], field: str, value: MessageT | str | Iterable[str] | None
) -> MessageT | None:
    """Returns a message made from the value of its only field.

    Args:
        kind: The message.
        field: Its field.
        value: The value, or the whole message.

    Raises:
        InvalidArgumentError: The field is a list, and the value one text.
    """
    if value is None or isinstance(value, kind):
        return value
    if kind.DESCRIPTOR.fields_by_name[field].is_repeated:
        refuse_text(value, field)
    return kind(**{field: value})


def refuse_text(values: Any, field: str) -> None:
    """Refuses a single text where a list is expected.

    Raises:
        InvalidArgumentError: It is one.
    """
    # A text is also a sequence of characters, which is never meant.
    if isinstance(values, str | bytes):
        raise wrong_argument(field, "must be a list, not a text")

"""Checks of the content of messages that clients send, shared by all services that accept them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from strata.api.common.v1 import message_pb2
from strata.protocol.errors import FieldViolation
from strata.protocol.images import (
    IMAGE_SUFFIXES,
    MAX_ALT_TEXT,
    MAX_IMAGES,
    ImageError,
    inspect_image,
    is_image_type,
)
from strata.shared.blank_text import is_blank
from strata.shared.web.errors import ForbiddenUrlError
from strata.shared.web.url_guard import parse_url

_USER = frozenset({message_pb2.ROLE_UNSPECIFIED, message_pb2.ROLE_USER})


def content_violations(
    field: str, messages: Sequence[message_pb2.MessageInput]
) -> Iterator[FieldViolation]:
    """Yields the violations in the parts of a client's messages.

    A message needs text that is not blank, or an image: providers refuse blank text, and without
    the message the request would end with a message of the model. The header of an image that is
    sent as bytes is checked; a URL is only checked for its form.

    Args:
        field: Path of the messages in the request, such as ``messages``.
        messages: The messages.
    """
    images = 0
    for index, message in enumerate(messages):
        path = f"{field}[{index}].parts"
        yield from _part_violations(path, message)
        images += sum(part.HasField("image") for part in message.parts)
    if images > MAX_IMAGES:
        yield FieldViolation(field, f"must hold at most {MAX_IMAGES} images, not {images}")


def _part_violations(field: str, message: message_pb2.MessageInput) -> Iterator[FieldViolation]:
    shows = False
    for index, part in enumerate(message.parts):
        path = f"{field}[{index}]"
        match part.WhichOneof("content"):
            case "text":
                if "\0" in part.text.text:
                    yield FieldViolation(f"{path}.text.text", "must not contain NUL")
                shows = shows or not is_blank(part.text.text)
            case "image":
                if message.role not in _USER:
                    yield FieldViolation(path, "only messages with the role USER hold images")
                yield from _image_violations(f"{path}.image", part.image)
                shows = True
            case _:
                yield FieldViolation(path, "must be text or an image")
                shows = True
    if not shows:
        yield FieldViolation(field, "must hold text that is not blank, or an image")


def _image_violations(field: str, image: message_pb2.ImagePart) -> Iterator[FieldViolation]:
    match image.WhichOneof("source"):
        case "data":
            try:
                inspect_image(image.data, image.media_type)
            except ImageError as error:
                yield FieldViolation(f"{field}.data", f"the image {error}")
        case "url":
            if image.media_type and not is_image_type(image.media_type):
                types = ", ".join(IMAGE_SUFFIXES)
                yield FieldViolation(f"{field}.media_type", f"must be empty or one of {types}")
            if not image.url.startswith("https://"):
                yield FieldViolation(f"{field}.url", "must be an https URL")
            else:
                try:
                    parse_url(image.url)
                except ForbiddenUrlError as error:
                    yield FieldViolation(f"{field}.url", str(error))
        case _:
            yield FieldViolation(field, "needs data or an https url")
    if len(image.alt_text) > MAX_ALT_TEXT or "\0" in image.alt_text:
        yield FieldViolation(
            f"{field}.alt_text", f"must have at most {MAX_ALT_TEXT} characters, and no NUL"
        )
    if image.detail not in message_pb2.ImageDetail.values():
        yield FieldViolation(f"{field}.detail", "is not a known detail")

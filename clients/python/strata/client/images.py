"""Messages with images."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from strata.api.common.v1 import message_pb2
from strata.protocol.errors import FieldViolation, InvalidArgumentError
from strata.protocol.images import ImageError, inspect_image

ImageSource: TypeAlias = "bytes | str | os.PathLike[str] | message_pb2.Part"
"""Bytes, a file, an https URL, or what `image` returned."""


def image(source: bytes | str | os.PathLike[str], *, alt_text: str = "") -> message_pb2.Part:
    """Returns an image as a part of a message.

    Args:
        source: Bytes or a file of a PNG, JPEG, GIF or WebP image; or an https URL, which the
            server fetches once, when the run begins.
        alt_text: Description of the image. Searches use it, and models without image support get
            it instead of the image.

    Raises:
        InvalidArgumentError: It is not such an image, or it is too large.
        OSError: The file cannot be read.
    """
    part = message_pb2.ImagePart(alt_text=alt_text)
    if isinstance(source, str) and source.startswith("https://"):
        part.url = source
        return message_pb2.Part(image=part)
    part.data = source if isinstance(source, bytes) else Path(source).read_bytes()
    try:
        part.media_type = inspect_image(part.data).media_type
    except ImageError as error:
        name = "The image" if isinstance(source, bytes) else os.fspath(source)
        raise InvalidArgumentError(
            f"{name} {error}.", violations=[FieldViolation("image", f"the image {error}")]
        ) from error
    return message_pb2.Part(image=part)


def user_message(text: str, images: Sequence[ImageSource] = ()) -> message_pb2.MessageInput:
    """Returns a message of the user with text, images or both.

    Raises:
        InvalidArgumentError: One of the images is not accepted.
        OSError: A file cannot be read.
    """
    parts = [source if isinstance(source, message_pb2.Part) else image(source) for source in images]
    if text or not parts:
        parts.insert(0, message_pb2.Part(text=message_pb2.TextPart(text=text)))
    return message_pb2.MessageInput(role=message_pb2.ROLE_USER, parts=parts)

"""Checks of images in messages: type, size and dimensions, read from the file's header.

Pixels are never decoded, so a small file that would unpack to gigabytes costs nothing.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

MAX_IMAGE_BYTES = 3_932_160
"""Bytes of one image: 5 MiB in Base64, the smallest limit of the providers."""
MAX_IMAGE_PIXELS = 8_000
"""Pixels along each side, the smallest limit of the providers."""
MAX_IMAGES = 20
"""Images of one request; more make providers lower their limit of pixels."""
MAX_IMAGES_BYTES = 12 * 1024 * 1024
"""Bytes of all images of one request; a message between services may have 16 MiB."""
MAX_ALT_TEXT = 1_000

IMAGE_SUFFIXES = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp"}
"""Accepted media types and their file name suffixes."""

_ID = re.compile(r"[0-9a-f]{64}")
_ALIASES = {"image/jpg": "image/jpeg"}
_PNG = b"\x89PNG\r\n\x1a\n"
# Start-of-frame markers; C4, C8 and CC between them mean something else.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Markers without a length: padding, restarts, and the start of the image.
_BARE = frozenset({0x01, *range(0xD0, 0xD9)})
# A marker after any number of bytes that fill the space before it.
_MARKER = re.compile(rb"\xff++([^\xff])")
# Encoders write less than a hundred markers before the frame. To skip those of a file that consists
# of empty segments would take seconds, in which the process does nothing else.
_MOST_MARKERS = 1_000


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """The fields of an image's header.

    Attributes:
        media_type: One of `IMAGE_SUFFIXES`.
        width: Width in pixels.
        height: Height in pixels.
    """

    media_type: str
    width: int
    height: int


class ImageError(ValueError):
    """The bytes are not an acceptable image; the message completes "The image …"."""


def image_id(data: bytes) -> str:
    """Returns the id of an image: SHA-256 of its bytes in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def image_text(alt_text: str) -> str:
    """Returns the text that replaces an image in searches, listings and summaries."""
    return f"[image: {alt_text}]" if alt_text else "[image]"


def is_image_id(text: str) -> bool:
    """Returns whether a text has the form of an image's id."""
    return _ID.fullmatch(text) is not None


def is_image_type(media_type: str) -> bool:
    """Returns whether images of a media type are accepted."""
    return _canonical_type(media_type) in IMAGE_SUFFIXES


def inspect_image(data: bytes, media_type: str = "") -> ImageHeader:
    """Returns the type and the size of an image.

    Args:
        data: The bytes of the image.
        media_type: The expected type; empty to accept any supported one.

    Raises:
        ImageError: The file is too large, not a supported image or of another type, or its width
            or height is out of range.
    """
    if len(data) > MAX_IMAGE_BYTES:
        raise ImageError(f"has {len(data):,} bytes; at most {MAX_IMAGE_BYTES:,} are accepted")
    header = _png(data) or _gif(data) or _webp(data) or _jpeg(data)
    if header is None:
        raise ImageError("is not a PNG, JPEG, GIF or WebP file, or its header is damaged")
    declared_type = _canonical_type(media_type)
    if declared_type and declared_type != header.media_type:
        raise ImageError(f"is {header.media_type}, not {media_type[:100]}")
    if not (0 < header.width <= MAX_IMAGE_PIXELS and 0 < header.height <= MAX_IMAGE_PIXELS):
        raise ImageError(
            f"has {header.width} x {header.height} pixels; 1 to {MAX_IMAGE_PIXELS:,} are accepted"
            " along each side"
        )
    return header


def _canonical_type(media_type: str) -> str:
    return _ALIASES.get(media_type.lower(), media_type.lower())


def _png(data: bytes) -> ImageHeader | None:
    if data[:8] != _PNG or data[12:16] != b"IHDR" or len(data) < 24:
        return None
    return ImageHeader("image/png", _big(data[16:20]), _big(data[20:24]))


def _gif(data: bytes) -> ImageHeader | None:
    if data[:6] not in (b"GIF87a", b"GIF89a") or len(data) < 10:
        return None
    return ImageHeader("image/gif", _little(data[6:8]), _little(data[8:10]))


def _webp(data: bytes) -> ImageHeader | None:
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP" or len(data) < 30:
        return None
    match data[12:16]:
        case b"VP8X":
            width, height = _little(data[24:27]) + 1, _little(data[27:30]) + 1
        case b"VP8L" if data[20] == 0x2F:
            bits = _little(data[21:25])
            width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8 " if data[23:26] == b"\x9d\x01\x2a":
            width, height = _little(data[26:28]) & 0x3FFF, _little(data[28:30]) & 0x3FFF
        case _:
            return None
    return ImageHeader("image/webp", width, height)


def _jpeg(data: bytes) -> ImageHeader | None:
    """Skips the segments before the frame; each is at least two bytes long."""
    at = 2 if data[:2] == b"\xff\xd8" else len(data)
    for _ in range(_MOST_MARKERS):
        match = _MARKER.match(data, at)
        if match is None:
            return None
        marker, at = data[match.start(1)], match.end()
        if marker in _FRAMES:
            if at + 7 > len(data):
                return None
            return ImageHeader(
                "image/jpeg", _big(data[at + 5 : at + 7]), _big(data[at + 3 : at + 5])
            )
        if marker not in _BARE:
            at += max(2, _big(data[at : at + 2]))
    return None


def _big(data: bytes) -> int:
    return int.from_bytes(data, "big")


def _little(data: bytes) -> int:
    return int.from_bytes(data, "little")

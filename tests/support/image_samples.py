"""Small images of every accepted type, of a given size."""

from __future__ import annotations

import io
import struct
import zlib

from PIL import Image

FORMATS = {"PNG": "image/png", "JPEG": "image/jpeg", "GIF": "image/gif", "WEBP": "image/webp"}


def png(width: int = 2, height: int = 1, shade: int = 0) -> bytes:
    """Returns a grey PNG; different shades give different bytes."""
    rows = (b"\0" + bytes([shade]) * width) * height
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks)


def padded(image: bytes, size: int) -> bytes:
    """Returns a PNG of exactly `size` bytes, padded with a chunk that viewers ignore."""
    fill = size - len(image) - 12
    return image[:-12] + _chunk(b"stRa", bytes(fill)) + image[-12:]


def encoded(kind: str, width: int, height: int, **options: object) -> bytes:
    """Returns an image of a type in `FORMATS`, made by an encoder that is not Strata's."""
    out = io.BytesIO()
    Image.new("RGB", (width, height), (200, 30, 30)).save(out, kind, **options)
    return out.getvalue()


def _chunk(name: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(name + content)
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", checksum)

"""Rules of the providers for images, implemented independently of the code under test.

OpenAI: image parts in messages of the user only, data URLs or https URLs. Anthropic: base64 or URL
sources in turns of the user and in results of tools, at most 5 MiB of Base64 each, at most 8,000
pixels along each side, at most 2,000 if there are more than 20 images, at most 100 images.
"""

from __future__ import annotations

import base64
import binascii
import io

from PIL import Image

MEDIA_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
MAX_ENCODED = 5 * 1024 * 1024


def problem(media_type: str, encoded: str, most_pixels: int = 8_000) -> str:
    """Returns the problem of an image in Base64; empty if it is valid."""
    if media_type not in MEDIA_TYPES:
        return f"media type {media_type!r} is not supported"
    if len(encoded) > MAX_ENCODED:
        return f"image exceeds 5 MB maximum: {len(encoded)} bytes > {MAX_ENCODED} bytes"
    try:
        with Image.open(io.BytesIO(base64.b64decode(encoded, validate=True))) as image:
            if image.get_format_mimetype() != media_type:
                return f"the image appears to be {image.get_format_mimetype()}, not {media_type}"
            if max(image.size) > most_pixels:
                return f"image dimensions exceed max allowed size: {most_pixels} pixels"
    except (binascii.Error, OSError):
        return "Could not process image"
    return ""

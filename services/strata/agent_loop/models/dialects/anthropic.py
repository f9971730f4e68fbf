"""Anthropic's messages API. Pure."""

from __future__ import annotations

from math import ceil

from strata.agent_loop.domain.model.chat import ImagePart
from strata.agent_loop.models.dialects.base import Dialect

# The image is fitted to the longer side, and no image takes more tokens than this.
_PIXELS_PER_TOKEN, _LONG_PIXELS, _MOST_TOKENS = 750, 1568, 1600
_UNKNOWN_PIXELS = 2048


def _image_tokens(image: ImagePart) -> int:
    width, height = image.width or _UNKNOWN_PIXELS, image.height or _UNKNOWN_PIXELS
    scale = min(1.0, _LONG_PIXELS / max(width, height))
    pixels = ceil(width * scale) * ceil(height * scale)
    return min(_MOST_TOKENS, ceil(pixels / _PIXELS_PER_TOKEN))


DIALECT = Dialect(
    name="anthropic",
    adapter="strata.agent_loop.models.anthropic_api.messages",
    # The newest tokenizer makes far more tokens than the usual four bytes each would suggest.
    bytes_per_token=1.8,
    image_tokens=_image_tokens,
    line_numbers=True,
)

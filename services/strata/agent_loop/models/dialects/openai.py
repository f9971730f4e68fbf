"""OpenAI's chat completions, at OpenAI and all compatible servers. Pure."""

from __future__ import annotations

from math import ceil

from strata.agent_loop.domain.model.chat import ImageDetail, ImagePart
from strata.agent_loop.models.dialects.base import Dialect

# The image is fitted into a square, then to the shorter side, and cut into tiles.
_TILE_BASE, _TILE_TOKENS, _TILE_PIXELS = 85, 170, 512
_SQUARE_PIXELS, _SHORT_PIXELS = 2048, 768


def _image_tokens(image: ImagePart) -> int:
    if image.detail is ImageDetail.LOW:
        return _TILE_BASE
    width, height = image.width or _SQUARE_PIXELS, image.height or _SQUARE_PIXELS
    scale = min(1.0, _SQUARE_PIXELS / max(width, height))
    scale *= min(1.0, _SHORT_PIXELS / (min(width, height) * scale))
    tiles = ceil(width * scale / _TILE_PIXELS) * ceil(height * scale / _TILE_PIXELS)
    return _TILE_BASE + _TILE_TOKENS * tiles


DIALECT = Dialect(
    name="openai",
    adapter="strata.agent_loop.models.openai_api.chat_completions",
    bytes_per_token=3.2,
    image_tokens=_image_tokens,
)

"""Computes the tokens of images by the providers' documented formulas. Pure."""

from __future__ import annotations

from strata.agent_loop.domain.model.chat import EndpointType, ImagePart, ShownImage
from strata.agent_loop.models.dialects.table import dialect_of


def image_tokens(kind: EndpointType, image: ImagePart) -> int:
    """Returns the tokens of an image; an image of unknown size counts as a large one."""
    return dialect_of(kind).image_tokens(image)


def shown(kind: EndpointType, image: ImagePart) -> ShownImage:
    """Returns an image as part of a prompt.

    Prompts are measured in bytes, so its tokens are converted to bytes of text, with the ratio that
    is assumed before the first exact count.
    """
    return ShownImage(image, round(image_tokens(kind, image) * dialect_of(kind).bytes_per_token))

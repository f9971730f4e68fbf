"""Tokens of images, by the examples of the providers' documentation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.agent_loop.domain.model.chat import (
    ChatMessage,
    ChatRole,
    EndpointType,
    ImageDetail,
    ImagePart,
    ModelRequest,
    TextPart,
)
from strata.agent_loop.models.dialects.table import DIALECTS
from strata.agent_loop.models.image_tokens import image_tokens, shown
from strata.agent_loop.models.tokens import estimate_usage

SIDES = st.integers(1, 8000)


def image(width: int, height: int, detail: ImageDetail = ImageDetail.AUTO) -> ImagePart:
    return ImagePart("image/png", "id", width, height, 1000, detail=detail)


@pytest.mark.parametrize(
    ("width", "height", "tokens"),
    [(1024, 1024, 765), (2048, 4096, 1105), (512, 512, 255), (1, 1, 255), (8000, 8000, 765)],
)
def test_openai_counts_tiles(width: int, height: int, tokens: int) -> None:
    assert image_tokens("openai", image(width, height)) == tokens
    low = image(width, height, ImageDetail.LOW)
    assert image_tokens("openai", low) == 85


@pytest.mark.parametrize(
    ("width", "height", "tokens"),
    [(200, 200, 54), (1000, 1000, 1334), (1092, 1092, 1590), (8000, 8000, 1600), (1, 1, 1)],
)
def test_anthropic_counts_pixels(width: int, height: int, tokens: int) -> None:
    assert image_tokens("anthropic", image(width, height)) == tokens


@given(st.sampled_from(sorted(DIALECTS)), SIDES, SIDES)
def test_tokens_of_an_image_are_positive_and_bounded(
    kind: EndpointType, width: int, height: int
) -> None:
    assert 0 < image_tokens(kind, image(width, height)) <= 1700
    assert image_tokens(kind, image(width, height)) == image_tokens(kind, image(height, width))


def test_image_of_unknown_size_counts_as_a_large_one() -> None:
    for kind in DIALECTS:
        assert image_tokens(kind, ImagePart("image/png")) == image_tokens(kind, image(2048, 2048))


@given(st.sampled_from(sorted(DIALECTS)), SIDES, SIDES)
def test_images_are_part_of_an_estimated_usage(kind: EndpointType, width: int, height: int) -> None:
    message = ChatMessage(ChatRole.USER, (TextPart(""), shown(kind, image(width, height))))
    usage = estimate_usage(ModelRequest([message]), "", kind)
    assert abs(usage.prompt_tokens - image_tokens(kind, image(width, height))) <= 1

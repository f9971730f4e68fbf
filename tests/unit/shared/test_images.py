"""Image headers, and refused images."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_samples import FORMATS, encoded, padded, png
from strata.protocol.images import (
    MAX_IMAGE_BYTES,
    MAX_IMAGE_PIXELS,
    ImageError,
    ImageHeader,
    image_id,
    inspect_image,
    is_image_id,
)

SIDES = st.integers(1, 700)
OPTIONS = st.sampled_from(
    [
        ("PNG", {}),
        ("GIF", {}),
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("JPEG", {"comment": b"\xff\xc0" * 40, "icc_profile": b"\xff\xd8\xff\xc2" * 50}),
        ("WEBP", {}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"exif": b"Exif\0\0", "icc_profile": b"icc"}),
    ]
)


@given(OPTIONS, SIDES, SIDES)
def test_type_and_size_are_read_from_any_encoder_output(
    how: tuple[str, dict[str, object]], width: int, height: int
) -> None:
    kind, options = how
    data = encoded(kind, width, height, **options)
    assert inspect_image(data) == ImageHeader(FORMATS[kind], width, height)
    assert inspect_image(data, FORMATS[kind].upper()) == inspect_image(data)


@given(OPTIONS, st.data())
def test_cut_or_damaged_images_never_raise_another_error(
    how: tuple[str, dict[str, object]], data: st.DataObject
) -> None:
    kind, options = how
    image = bytearray(encoded(kind, 5, 7, **options))
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, min(len(image), 60) - 1))
        image[at] = data.draw(st.integers(0, 255))
    cut = bytes(image[: data.draw(st.integers(0, len(image)))])
    try:
        header = inspect_image(cut)
    except ImageError:
        return
    assert 0 < header.width <= MAX_IMAGE_PIXELS
    assert 0 < header.height <= MAX_IMAGE_PIXELS


@pytest.mark.parametrize("segment", [b"\xff\x01", b"\xff\xe0\0\2", b"\xff\xe0\0\0"])
def test_a_jpeg_with_very_many_segments_before_its_frame_counts_as_damaged(segment: bytes) -> None:
    jpeg = encoded("JPEG", 3, 2)
    assert inspect_image(jpeg[:2] + segment * 500 + jpeg[2:]) == ImageHeader("image/jpeg", 3, 2)
    with pytest.raises(ImageError, match="damaged"):
        inspect_image(jpeg[:2] + segment * 1_001 + jpeg[2:])


def test_any_number_of_fill_bytes_may_precede_a_marker_of_a_jpeg() -> None:
    jpeg = encoded("JPEG", 3, 2)
    filled = jpeg[:2] + b"\xff" * 100_000 + jpeg[2:]
    assert inspect_image(filled) == ImageHeader("image/jpeg", 3, 2)


@given(st.binary(max_size=200), st.sampled_from([b"", b"\xff\xd8", b"GIF89a", b"RIFF1234WEBPVP8X"]))
def test_any_bytes_result_in_a_header_or_an_error(data: bytes, magic: bytes) -> None:
    try:
        inspect_image(magic + data)
    except ImageError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("data", "media_type", "message"),
    [
        (b"", "", "is not a PNG"),
        (b"<svg/>", "image/svg+xml", "is not a PNG"),
        (png(), "image/jpeg", "is image/png, not image/jpeg"),
        (png(MAX_IMAGE_PIXELS + 1), "", "has 8001 x 1 pixels"),
        (padded(png(), MAX_IMAGE_BYTES + 1), "", "has 3,932,161 bytes"),
        (b"\xff\xd8" + b"\xff\xe0\x00\x00" * 1000, "", "is not a PNG"),
    ],
    ids=["empty", "SVG", "another type", "too wide", "too large", "segments without length"],
)
def test_refused_images_have_a_reason(data: bytes, media_type: str, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        inspect_image(data, media_type)


def test_largest_image_is_accepted() -> None:
    assert inspect_image(padded(png(MAX_IMAGE_PIXELS, 1), MAX_IMAGE_BYTES)).width == 8000


def test_image_jpg_is_another_name_of_jpeg() -> None:
    assert inspect_image(encoded("JPEG", 1, 1), "image/jpg").media_type == "image/jpeg"


def test_equal_bytes_have_the_same_id() -> None:
    assert image_id(png()) == image_id(png())
    assert image_id(png()) != image_id(png(shade=1))
    assert is_image_id(image_id(png()))
    assert not is_image_id(image_id(png()).upper())

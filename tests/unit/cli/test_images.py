"""Images from the command line and from Python programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from image_samples import png
from strata.cli.chat.images import from_command, message_with_images
from strata.cli.failures import UsageError
from strata.client import InvalidArgumentError, image
from strata.client.images import user_message


@pytest.mark.parametrize(
    ("line", "name", "text"),
    [
        ("/image cat.png What is this?", "cat.png", "What is this?"),
        ("/image cat.png", "cat.png", ""),
        ('/image "my cat.png" It\'s mine.', "my cat.png", "It's mine."),
        ("/image 'my cat.png'  Look", "my cat.png", "Look"),
        ("/image my\\ cat.png Look", "my cat.png", "Look"),
    ],
)
def test_a_chat_line_has_an_image_file_and_a_text(
    line: str, name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(png())
    message = from_command(line)
    assert [part.text.text for part in message.parts if part.HasField("text")] == [text] * bool(
        text
    )
    assert [part.image.data for part in message.parts if part.HasField("image")] == [png()]


@pytest.mark.parametrize("line", ["/image", "/image  ", '/image "" x', "/image missing.png Hi"])
def test_line_without_a_readable_file_is_refused(line: str) -> None:
    with pytest.raises(UsageError):
        from_command(line)


def test_home_folder_and_addresses_are_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "cat.png").write_bytes(png())
    message = message_with_images("Two.", ["~/cat.png", "https://a.example/b.png"])
    assert message.parts[1].image.data == png()
    assert message.parts[2].image.url == "https://a.example/b.png"


def test_error_names_the_file_that_is_not_an_image(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("Hello.")
    with pytest.raises(InvalidArgumentError, match=r"notes\.txt is not a PNG"):
        image(file)
    with pytest.raises(InvalidArgumentError, match="The image is not a PNG"):
        image(b"Hello.")


def test_part_is_kept_as_it_was_made() -> None:
    part = image(png(), alt_text="A dot.")
    assert part.image.media_type == "image/png"
    assert list(user_message("Look.", [part, png(3, 3)]).parts)[1] == part
    assert [p.WhichOneof("content") for p in user_message("", [part]).parts] == ["image"]
    assert [p.WhichOneof("content") for p in user_message("").parts] == ["text"]

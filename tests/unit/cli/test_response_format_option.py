"""Errors of --response-format name the file that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata.cli.failures import UsageError
from strata.cli.response_formats import response_format


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "No such file or directory"), (b"\xff\xfe", "it is not text in UTF-8")],
)
def test_file_that_cannot_be_read_is_named(
    tmp_path: Path, content: bytes | None, problem: str
) -> None:
    file = tmp_path / "weather.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError) as raised:
        response_format(str(file))
    assert str(raised.value).endswith(f"{file} cannot be read: {problem}.")

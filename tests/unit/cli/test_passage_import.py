"""Lines of a file of passages that are not passages are reported with their number."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata.cli.archival.passage_import import PassageFile
from strata.cli.failures import UsageError


@pytest.mark.parametrize(
    "line",
    [
        "7",
        "{",
        "[" * 100_000,
        '{"text": ' + "[" * 5_000 + "]" * 5_000 + "}",
        '{"text": 7}',
        '{"words": "x"}',
        r'{"text": "\ud800"}',
        r'{"origin": "\ud800"}',
        r'{"\ud800": "x"}',
        '{"text": "x", "embedding": [1e309]}',
        '{"text": "x", "createTime": 1e309}',
        '{"text": "x", "text": "y"}',
        '{"text": ' + "9" * 5_000 + "}",
        '{"text": "x", "embeddingModel": "a", "embedding_model": "b"}',
    ],
    ids=range(14),
)
def test_a_line_that_is_no_passage_is_reported_with_its_number(tmp_path: Path, line: str) -> None:
    file = tmp_path / "passages.jsonl"
    file.write_text('{"text": "A passage."}\n\n' + line + "\n")
    with pytest.raises(UsageError, match=r"^Line 3 of .* is not a passage: .") as refused:
        list(PassageFile.of(file).passages())
    assert "Error" not in str(refused.value)

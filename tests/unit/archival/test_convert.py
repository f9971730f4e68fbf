"""Conversion and validation of requests about archives and passages."""

from __future__ import annotations

from base64 import b64encode
from functools import partial

import pytest

from strata.api.archival.v1 import archive_service_pb2 as archive_pb
from strata.api.archival.v1 import file_index_service_pb2 as file_pb
from strata.api.archival.v1 import passage_service_pb2 as pb
from strata.archival.convert import archives as convert
from strata.archival.convert import files as convert_files
from strata.archival.convert import passages as convert_passages
from strata.archival.convert.passages import PassageReader
from strata.protocol.errors import FailedPreconditionError, InvalidArgumentError, Reason
from strata.shared.ids import new_id
from strata.shared.search.embedding.wordpiece import WordPieceTokenizer


@pytest.mark.parametrize("seconds", [-1, 101 * 365 * 24 * 3600])
def test_an_invalid_time_to_live_is_refused(seconds: int) -> None:
    request = archive_pb.UpdateArchiveRequest(
        archive_id=new_id("archive"), time_to_live_seconds=seconds
    )
    with pytest.raises(InvalidArgumentError):
        convert.to_change(request)
    request.time_to_live_seconds = 60
    assert convert.to_change(request).time_to_live == 60


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("reason", pb.UpdatePassageRequest(reason="x" * 3000)),
        ("reason", pb.UpdatePassageRequest(reason="a\0")),
        ("metadata", pb.UpdatePassageRequest(metadata={"": "x"}, set_metadata=True)),
        ("metadata", pb.UpdatePassageRequest(metadata={"k": "a\0"}, set_metadata=True)),
        ("metadata", pb.UpdatePassageRequest(metadata={"k": "x" * 20_000}, set_metadata=True)),
        (
            "metadata",
            pb.UpdatePassageRequest(metadata={str(n): "" for n in range(65)}, set_metadata=True),
        ),
        ("text", pb.UpdatePassageRequest(text=" ")),
        # Without the flag they would be ignored.
        ("set_tags", pb.UpdatePassageRequest(text="new", tags=["boat"])),
        ("set_metadata", pb.UpdatePassageRequest(metadata={"k": "v"})),
        ("expected_revision", pb.UpdatePassageRequest(text="new", expected_revision=-1)),
    ],
)
def test_a_wrong_change_is_refused_by_its_field(
    field: str, request_: pb.UpdatePassageRequest
) -> None:
    request_.passage_id = new_id("passage")
    with pytest.raises(InvalidArgumentError) as caught:
        convert_passages.check_change(request_)
    assert [violation.field for violation in caught.value.violations] == [field]


READER = PassageReader(WordPieceTokenizer.bert_uncased().limit_tokens, 8192)
CUTTER = partial(
    convert_files.to_chunks, count_tokens=WordPieceTokenizer.bert_uncased().limit_tokens, limit=8192
)


# Tokenizers of chat models make 8,000 to 90,000 tokens of each.
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("x" * 25_000, id="letters"),
        pytest.param("x" * 900_000, id="many letters"),
        pytest.param("\u65e5\u672c\u8a9e" * 3_000, id="Han"),
        pytest.param("\u30e2" * 9_000, id="kana"),
        pytest.param("\uac00" * 9_000, id="Hangul"),
        pytest.param("\u0e01" * 9_000, id="Thai"),
        pytest.param("\U0001f389" * 7_000, id="emoji"),
        pytest.param("\U0001f389\U0001f389 " * 3_500, id="emoji with blanks"),
        pytest.param("\U0001f469\u200d\U0001f469\u200d\U0001f467" * 2_500, id="joined emoji"),
        pytest.param(b64encode(bytes(range(256)) * 80).decode(), id="base64"),
        pytest.param(b64encode(b"\0" * 20_000).decode(), id="base64 of zeros"),
        pytest.param("0123456789abcdef" * 1_700, id="hex"),
        pytest.param("\u0434" * 13_000, id="Cyrillic"),
        pytest.param(" x" * 500 + " " * 131_072, id="blanks"),
    ],
)
def test_a_text_over_the_token_limit_is_refused_whatever_its_characters(text: str) -> None:
    for refused in (
        lambda: READER.text(text),
        lambda: CUTTER([file_pb.FileChunk(text=text, start_line=1, end_line=1)], 0),
    ):
        with pytest.raises(FailedPreconditionError) as caught:
            refused()
        assert caught.value.reason is Reason.TOKEN_LIMIT_EXCEEDED


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("remember " * 8192, id="words"),
        pytest.param("x" * 24_000, id="letters"),
        pytest.param("\u65e5\u672c\u8a9e" * 2_700, id="Han"),
        pytest.param("\U0001f389" * 6_000, id="emoji"),
        pytest.param(("| a | b |" + " " * 40 + "\n") * 1_300, id="a table with blanks"),
    ],
)
def test_a_text_within_the_token_limit_is_accepted(text: str) -> None:
    assert READER.text(text).token_count <= 8192


def test_a_text_above_the_limit_of_tokens_by_one_is_refused() -> None:
    with pytest.raises(FailedPreconditionError):
        READER.text("remember " * 8193)

"""Memory blocks as Markdown files."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.cli.failures import UsageError
from strata.cli.memory.folder import STATE_FILE, Files, MemoryFolder, file_name
from strata.cli.memory.markdown import (
    BlockFile,
    DocumentError,
    NoFrontMatterError,
    parse,
    render,
)
from strata.shared.ids import new_id

# Any protobuf string; characters with a meaning in Markdown and YAML are more frequent.
ANY = st.text(st.characters(exclude_categories=["Cs"]))
HARD = st.text(st.sampled_from("a \n\r\t-:#'\"|>\x85\u2028\u2029\ufeff{}[]&*!%@`,?\\\x07\x7fé"))
TEXTS = ANY | HARD | st.builds("---\n{}\n---\n{}".format, HARD, HARD)
LABELS = st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,63}", fullmatch=True)
DOCUMENTS = st.builds(
    BlockFile,
    label=LABELS,
    value=TEXTS,
    description=st.none() | TEXTS,
    limit=st.none() | st.integers(1, 2**31 - 1),
    read_only=st.none() | st.booleans(),
    revision=st.integers(0, 2**63 - 1),
    block_id=st.just("") | st.just(new_id("block")),
)


@given(DOCUMENTS)
def test_rendered_document_parses_to_the_same_document(document: BlockFile) -> None:
    assert parse(render(document)) == document


@given(DOCUMENTS)
def test_a_file_on_the_disk_keeps_every_byte(document: BlockFile) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = MemoryFolder(Path(place))
        folder.write(file_name(document.label), document)
        [file] = MemoryFolder(Path(place)).read()
        assert file.document == document
        assert file.data.endswith(f"---\n{document.value}\n".encode())


def test_the_form_is_one_that_people_read_and_write() -> None:
    document = BlockFile("human", "Name: Ann\n", "What you know.\nKeep it.", 500, False, 3, "b-1")
    assert render(document).decode() == (
        "---\n"
        "label: human\n"
        "description: |-\n"
        "  What you know.\n"
        "  Keep it.\n"
        "limit: 500\n"
        "read_only: false\n"
        "revision: 3\n"
        "block_id: b-1\n"
        "---\n"
        "Name: Ann\n"
        "\n"
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("---\n---\n", ""),
        ("---\n---", ""),
        ("---\n---\n\n", ""),
        ("---\n---\nno newline at the end", "no newline at the end"),
        ("---\n---\none newline\n", "one newline"),
        ("---\n---\ntwo\n\n", "two\n"),
        ("---\r\nread_only: no\r\n---\r\ntext\r\nmore\r\n", "text\r\nmore\r"),
        ("---\n---\n---\nnot: a header\n---\n", "---\nnot: a header\n---"),
        ("\ufeff---\n---\ntext\n", "text"),
        ("--- \n--- \ntext\n", "text"),
    ],
)
def test_text_begins_after_the_front_matter(text: str, value: str) -> None:
    assert parse(text.encode()).value == value


def test_yaml_values_of_other_types_are_read_as_text() -> None:
    document = parse(b"---\nlabel: no\ndescription: 2026-07-30\nlimit: 0500\n---\n")
    assert document == BlockFile("no", "", "2026-07-30", 500)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"\xff\xfe", "is not UTF-8 text (byte 0)"),
        (b"---\nlabel: x\ntext", 'no line "---" that ends the front matter'),
        (b"---\nlabel: [a\n---\n", "not YAML in line 3"),
        (b"---\n- a\n---\n", "without names"),
        (b"---\nlabel: x\ntitle: y\n---\n", "has title in its front matter"),
        (b"---\nlabel: {a: b}\n---\n", "a plain value is needed"),
        (b"---\nlimit: many\n---\n", "a whole number is needed"),
        (b"---\nlimit: -1\n---\n", "a whole number is needed"),
        (b"---\nlimit: 99999999999\n---\n", "a whole number is needed"),
        (b"---\nread_only: perhaps\n---\n", "true or false is needed"),
        (b"---\nlabel: \x01\n---\n", "not YAML"),
    ],
)
def test_invalid_documents_are_explained(text: bytes, complaint: str) -> None:
    with pytest.raises(DocumentError) as caught:
        parse(text)
    assert complaint in str(caught.value)


def test_file_without_front_matter_is_foreign(tmp_path: Path) -> None:
    with pytest.raises(NoFrontMatterError):
        parse(b"# Read me\n---\n")
    (tmp_path / "README.md").write_text("# Read me\n")
    (tmp_path / "human.md.theirs").write_text("---\n---\n")
    (tmp_path / "folder.md").mkdir()
    [file] = MemoryFolder(tmp_path).read()
    assert (file.name, file.foreign, file.document) == ("README.md", True, None)


def test_the_label_follows_from_the_name_and_must_not_contradict_it(tmp_path: Path) -> None:
    (tmp_path / "a.b.md").write_text("---\n---\ntext\n")
    (tmp_path / "c.md").write_text("---\nlabel: d\n---\ntext\n")
    good, bad = MemoryFolder(tmp_path).read()
    assert good.document == BlockFile("a.b", "text")
    assert bad.document is None
    assert "Name the file d.md, or write label: c." in bad.problem


def test_state_is_stored_and_detects_changed_files(tmp_path: Path) -> None:
    document = BlockFile("human", "text", "", 500, False, 3, new_id("block"))
    folder = MemoryFolder(tmp_path / "new")
    folder.belong_to("agent-1")
    folder.write("human.md", document)
    folder.in_step(document)
    folder.save()
    again = MemoryFolder(tmp_path / "new")
    assert again.agent_id == "agent-1"
    [file] = again.read()
    entry = again.entries[document.block_id]
    assert again.unchanged(file, entry)
    again.write("human.md", dataclasses.replace(document, value="other"))
    [file] = again.read()
    assert not again.unchanged(file, entry)
    assert {file.name for file in (tmp_path / "new").iterdir()} == {"human.md", STATE_FILE}


def test_a_damaged_state_file_is_reported_and_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / STATE_FILE).write_text('{"format": 1, "agent_id"')
    with pytest.raises(UsageError, match="is damaged"):
        MemoryFolder(tmp_path)


def test_file_with_the_id_of_a_block_belongs_to_it(tmp_path: Path) -> None:
    block = BlockFile("human", "text", "", 500, False, 3, new_id("block"))
    folder = MemoryFolder(tmp_path)
    folder.write("person.md", dataclasses.replace(block, label="person"))
    folder.write("human.md", dataclasses.replace(block, block_id="", revision=0))
    files = Files(folder.read())
    claimed = files.of_block(block, None)
    assert claimed is not None
    assert claimed.name == "person.md"

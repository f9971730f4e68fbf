"""Converting files in a child process: real files of every kind, and hostile ones."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import BinaryIO

import psutil
import pytest

import file_samples as samples
from child_processes import descendants
from strata.core_memory.files.text_extraction.formats import FileFormat
from strata.core_memory.files.text_extraction.pages import UnreadableFileError
from strata.core_memory.files.text_extraction.reader import (
    FileReader,
    ReadingBrokeOffError,
    ReadingLimits,
)
from strata.shared.background_priority import MORE_NICENESS

pytestmark = pytest.mark.child_process

CHILD = "strata.core_memory.files.text_extraction.child"
MIB = 1024 * 1024
NOISE = random.Random(7).randbytes(5000)


@contextmanager
def file_of(data: bytes) -> Iterator[BinaryIO]:
    with tempfile.TemporaryFile() as file:
        file.write(data)
        yield file


async def text_of(data: bytes, file_format: FileFormat, limits: ReadingLimits | None = None) -> str:
    with file_of(data) as file:
        pages = [page async for page in FileReader(limits).pages(file, file_format)]
    return "\n".join(page.text for page in pages)


async def refusal_of(
    data: bytes, file_format: FileFormat, limits: ReadingLimits | None = None
) -> str:
    with pytest.raises(UnreadableFileError) as caught:
        await text_of(data, file_format, limits)
    return caught.value.message


async def child() -> psutil.Process:
    """Waits for the child process and returns it."""
    async with asyncio.timeout(30):
        while not descendants(CHILD):
            await asyncio.sleep(0.01)
    (process,) = descendants(CHILD)
    return process


async def test_a_pdf() -> None:
    data = samples.pdf(["Hello World", "on two lines"], ["and two pages"])
    text = await text_of(data, FileFormat.PDF)
    assert text.split() == ["Hello", "World", "on", "two", "lines", "and", "two", "pages"]
    assert "Hello World\non two lines\n" in text


async def test_a_pdf_of_many_pages_is_read_in_pages() -> None:
    pages = [[f"page {page} line {line}" for line in range(40)] for page in range(150)]
    text = await text_of(samples.pdf(*pages), FileFormat.PDF)
    assert [line for line in text.split("\n") if line] == [
        line for lines in pages for line in lines
    ]


async def test_a_word_document_is_read_by_paragraphs() -> None:
    data = samples.docx("First paragraph", "Second &amp; last")
    assert await text_of(data, FileFormat.DOCX) == "First paragraph\n\nSecond & last"


async def test_a_web_page() -> None:
    data = (
        "<html><head><title>T</title><style>p {}</style><script>evil()</script></head><body>"
        "<h1>Überschrift</h1><p>One <b>bold</b> word</p>"
        "<table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td>2</td></tr></table></body></html>"
    ).encode()
    text = await text_of(data, FileFormat.HTML)
    assert text.startswith("# Überschrift\n\nOne **bold** word\n\n| a | b |\n")
    assert "evil" not in text


@pytest.mark.parametrize(
    ("data", "file_format", "words"),
    [
        (samples.pdf(["secret"], encrypted=True), FileFormat.PDF, "protected by a password"),
        (samples.scanned_pdf(), FileFormat.PDF, "contains no text"),
        (b"%PDF-1.7\n" + NOISE, FileFormat.PDF, "PDF is damaged"),
        (b"PK\x03\x04" + NOISE, FileFormat.DOCX, "Word document is damaged"),
        (samples.archive({"other.txt": b"x"}), FileFormat.DOCX, "not a Word document"),
        (samples.xml_bomb(), FileFormat.DOCX, "Word document"),
    ],
    ids=["password", "scan", "broken-pdf", "broken-docx", "no-docx", "xml-bomb"],
)
async def test_unreadable_files_have_errors_with_reasons(
    data: bytes, file_format: FileFormat, words: str
) -> None:
    assert words in await refusal_of(data, file_format)
    assert descendants(CHILD) == []


async def test_a_word_document_that_expands_too_much_is_refused() -> None:
    # It takes seconds to make, so it is not a parameter: every test process makes the parameters.
    message = await refusal_of(samples.docx_bomb(), FileFormat.DOCX)
    assert "unpacks to more than 200 MB" in message
    assert descendants(CHILD) == []


async def test_conversion_has_a_time_limit() -> None:
    limits = ReadingLimits(seconds=3)
    message = await refusal_of(samples.endless_pdf(), FileFormat.PDF, limits)
    assert message == "Reading the file took longer than 3 seconds."
    assert descendants(CHILD) == []


async def test_conversion_has_a_memory_limit() -> None:
    limits = ReadingLimits(memory_bytes=320 * MIB)
    message = await refusal_of(b"<div>" * 400_000, FileFormat.HTML, limits)
    assert "needs too much memory" in message


async def test_killed_child_raises_an_error_that_allows_another_attempt() -> None:
    reading = asyncio.create_task(text_of(samples.endless_pdf(), FileFormat.PDF))
    (await child()).send_signal(signal.SIGKILL)
    with pytest.raises(ReadingBrokeOffError):
        await reading


async def test_cancelled_reading_ends_the_child() -> None:
    reading = asyncio.create_task(text_of(samples.endless_pdf(), FileFormat.PDF))
    await child()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert descendants(CHILD) == []


async def test_closing_the_pages_early_ends_the_child() -> None:
    pages = [[f"page {page} line {line}" for line in range(60)] for page in range(300)]
    with file_of(samples.pdf(*pages)) as file:
        async with aclosing(FileReader().pages(file, FileFormat.PDF)) as reading:
            assert (await anext(reading)).first_line == 1
    assert descendants(CHILD) == []


async def test_child_does_not_inherit_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-service")
    reading = asyncio.create_task(text_of(samples.endless_pdf(), FileFormat.PDF))
    environment = (await child()).environ()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert "PYTHONPATH" in environment
    assert "OPENAI_API_KEY" not in environment


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a parent-death signal")
async def test_the_child_process_ends_when_its_service_is_killed(tmp_path: Path) -> None:
    (tmp_path / "endless.pdf").write_bytes(samples.endless_pdf())
    program = (
        "import asyncio, sys\n"
        "from strata.core_memory.files.text_extraction.reader import FileReader, FileFormat\n"
        "async def main():\n"
        "    with open(sys.argv[1], 'rb') as file:\n"
        "        async for page in FileReader().pages(file, FileFormat.PDF): pass\n"
        "asyncio.run(main())\n"
    )
    service = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "endless.pdf")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        process = await child()
    finally:
        service.kill()
        service.wait()
    psutil.wait_procs([process], timeout=20)
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def ask_child(file_format: str, code: str, data: bytes) -> subprocess.CompletedProcess[bytes]:
    """Runs the child with another conversion in place of its own."""
    program = (
        "import os, sys\n"
        "from strata.core_memory.files.text_extraction import child\n"
        f"def convert(file):\n    {code}\n    yield 'done'\n"
        "def load_converter(file_format):\n"
        "    child.niceness = os.getpriority(os.PRIO_PROCESS, 0)\n"
        "    child.is_loaded = 'markitdown' in sys.modules\n"
        "    return convert\n"
        "child.load_converter = load_converter\n"
        f"child.main(child.FileFormat({file_format!r}), os.getppid(), 60, 2 ** 30)\n"
    )
    with file_of(data) as file:
        return subprocess.run(
            [sys.executable, "-c", program],
            stdin=file,
            capture_output=True,
            check=False,
            timeout=60,
            env={"PYTHONPATH": os.pathsep.join(sys.path)},
        )


EFFECTS = (
    "__import__('socket').create_connection(('127.0.0.1', 9))",
    "__import__('subprocess').run(['true'])",
    "os.system('true')",
    "os.fork()",
    "open('/tmp/written-by-a-converter', 'w')",
    "os.open('/tmp/written-by-a-converter', os.O_CREAT | os.O_WRONLY)",
    "os.kill(os.getppid(), 0)",
    "os.remove('/tmp/nothing-is-there')",
)


def test_child_can_only_read_its_input() -> None:
    """Every effect is refused; a file whose conversion has one is reported as damaged."""
    attempts = "\n    ".join(
        f"try: {code}\n    except Exception as error: print({number}, error, file=sys.stderr)"
        for number, code in enumerate(EFFECTS)
    )
    done = ask_child("html", f"{attempts}\n    {EFFECTS[0]}", b"<p>x</p>")
    lines = [line for line in done.stderr.splitlines() if b"a converter" in line]
    refused = [int(line.split()[0]) for line in lines if line[:1].isdigit()]
    assert refused == list(range(len(EFFECTS))), done.stderr
    # The last one is not caught: it ends the conversion.
    assert len(lines) > len(refused)
    assert done.stdout[:1] == b"X"


def test_child_lowers_its_priority_before_it_loads_the_converters() -> None:
    code = "print(child.niceness, child.is_loaded, file=sys.stderr)"
    done = ask_child("html", code, b"<p>x</p>")
    expected = min(os.getpriority(os.PRIO_PROCESS, 0) + MORE_NICENESS, 19)
    assert done.stderr.split() == [str(expected).encode(), b"False"]


def test_output_of_libraries_does_not_become_pages() -> None:
    done = ask_child("html", "print('hello'); os.write(1, b'hello')", b"<p>x</p>")
    assert b"hello" not in done.stdout
    assert done.stdout[:1] == b"P"
    assert done.stderr.count(b"hello") == 2

"""Converts PDF, DOCX and HTML to Markdown, with markitdown.

Only the child process imports this module: hostile files make these libraries slow, take
much memory, or crash. Importing markitdown takes a second and 80 MB.
"""

from __future__ import annotations

import logging
import re
import warnings
import zipfile
from collections.abc import Iterator
from typing import BinaryIO, Protocol

import pypdfium2  # type: ignore[import-untyped]
from markitdown import StreamInfo
from markitdown.converters import DocxConverter, HtmlConverter, PdfConverter
from pdfminer.pdfdocument import PDFDocument, PDFEncryptionError, PDFPasswordIncorrect
from pdfminer.pdfexceptions import PDFException
from pdfminer.pdfparser import PDFParser

from strata.core_memory.files.text_extraction.formats import FileFormat
from strata.core_memory.files.text_extraction.pages import UnreadableFileError
from strata.core_memory.files.text_extraction.refusals import damaged

# A page of Word is some 20 kB of XML; this is 10,000 of them.
_MAX_UNPACKED_BYTES = 200 * 1024 * 1024
_MAX_MEMBERS = 10_000
_DOCUMENT = "word/document.xml"
# Control characters and lone surrogates, which the database or the prompt cannot hold.
_UNWANTED = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f\ud800-\udfff]")
# Finding tables takes about 0.2 s a page: longer documents are read as plain text by PDFium,
# which takes 2 ms.
_MOST_PAGES_WITH_TABLES = 100


class Convert(Protocol):
    """Converts a file to text."""

    def __call__(self, file: BinaryIO) -> Iterator[str]:
        """Yields the text of the file in pieces.

        Raises:
            UnreadableFileError: It cannot be read.
        """
        ...


def converter_of(file_format: FileFormat) -> Convert:
    """Returns the converter of a format."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    return {FileFormat.PDF: _from_pdf, FileFormat.DOCX: _from_docx, FileFormat.HTML: _from_html}[
        file_format
    ]


def _from_pdf(file: BinaryIO) -> Iterator[str]:
    _check_password(file)
    has_text = False
    for piece in _text_of_pdf(file):
        has_text = has_text or bool(piece.strip())
        yield _clean(piece)
    if not has_text:
        raise UnreadableFileError(
            "The PDF contains no text. Pages that are images, such as scans, cannot be read."
        )


def _text_of_pdf(file: BinaryIO) -> Iterator[str]:
    document = pypdfium2.PdfDocument(file.read())
    if len(document) <= _MOST_PAGES_WITH_TABLES:
        file.seek(0)
        yield PdfConverter().convert(file, StreamInfo(extension=".pdf")).markdown
        return
    for number in range(len(document)):
        page = document[number]
        text = page.get_textpage()
        yield text.get_text_bounded() + "\n"
        text.close()
        page.close()


def _check_password(file: BinaryIO) -> None:
    try:
        PDFDocument(PDFParser(file))
    except (PDFPasswordIncorrect, PDFEncryptionError) as error:
        raise UnreadableFileError("The PDF is protected by a password.") from error
    except PDFException:
        # PDFium is more tolerant: a file that it cannot read either is damaged.
        pass
    file.seek(0)


def _from_docx(file: BinaryIO) -> Iterator[str]:
    _check_archive(file)
    converter = DocxConverter()  # type: ignore[no-untyped-call]
    yield _clean(converter.convert(file, StreamInfo(extension=".docx")).markdown)


def _from_html(file: BinaryIO) -> Iterator[str]:
    yield _clean(HtmlConverter().convert(file, StreamInfo(extension=".html")).markdown)


def _check_archive(file: BinaryIO) -> None:
    """Raises if a file is not a Word document, or unpacks to more than the limit.

    The declared sizes can be trusted: zipfile never unpacks more of a member.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
    except zipfile.BadZipFile as error:
        raise damaged(FileFormat.DOCX) from error
    file.seek(0)
    if not any(member.filename == _DOCUMENT for member in members):
        raise UnreadableFileError("The file is not a Word document.")
    if any(member.flag_bits & 1 for member in members):
        raise UnreadableFileError("The Word document is protected by a password.")
    unpacked = sum(member.file_size for member in members)
    if unpacked > _MAX_UNPACKED_BYTES or len(members) > _MAX_MEMBERS:
        raise UnreadableFileError(
            f"The Word document unpacks to more than {_MAX_UNPACKED_BYTES // 1024**2} MB"
            f" or to more than {_MAX_MEMBERS} parts."
        )


def _clean(text: str) -> str:
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n")
    return _UNWANTED.sub("", text)

"""Small valid and hostile files of every kind, built byte by byte."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence

_WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_TYPES = (
    '<?xml version="1.0"?><Types xmlns="http://schemas.openxmlformats.org/package/2006/'
    'content-types"><Default Extension="rels" ContentType="application/vnd.openxmlformats-'
    'package.relationships+xml"/><Override PartName="/word/document.xml" ContentType="application/'
    'vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"/></Types>'
)
_RELATIONS = (
    '<?xml version="1.0"?><Relationships xmlns="http://schemas.openxmlformats.org/package/2006/'
    'relationships"><Relationship Id="rId1" Type="http://schemas.openxmlformats.org/'
    'officeDocument/2006/relationships/officeDocument" Target="word/document.xml"/></Relationships>'
)


def pdf(*pages: Sequence[str], encrypted: bool = False) -> bytes:
    """Returns a PDF whose pages have lines of ASCII text."""
    streams = []
    for lines in pages:
        shown = " ".join(f"({line}) Tj T*" for line in lines)
        streams.append(f"BT /F1 12 Tf 14 TL 72 720 Td {shown} ET".encode())
    return pdf_of(streams, encrypted=encrypted)


def pdf_of(streams: Sequence[bytes], forms: Sequence[bytes] = (), encrypted: bool = False) -> bytes:
    """Returns a PDF with a page for each content stream; pages can use forms as /X0, /X1..."""
    count = len(streams)
    first_form = 4 + 2 * count
    names = b" ".join(b"/X%d %d 0 R" % (n, first_form + n) for n in range(len(forms)))
    resources = b"<< /Font << /F1 3 0 R >> /XObject << %s >> >>" % names
    kids = b" ".join(b"%d 0 R" % (4 + 2 * n) for n in range(count))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, count),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, stream in enumerate(streams):
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources %s"
            b" /Contents %d 0 R >>" % (resources, 5 + 2 * number)
        )
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream))
    objects += [
        b"<< /Type /XObject /Subtype /Form /BBox [0 0 612 792] /Resources %s /Length %d >>\n"
        b"stream\n%s\nendstream" % (resources, len(form), form)
        for form in forms
    ]
    return _assembled(objects, encrypted)


def _assembled(objects: Sequence[bytes], encrypted: bool) -> bytes:
    made = bytearray(b"%PDF-1.4\n")
    places = []
    for number, object_ in enumerate(objects, 1):
        places.append(len(made))
        made += b"%d 0 obj\n%s\nendobj\n" % (number, object_)
    start = len(made)
    made += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    made += b"".join(b"%010d 00000 n \n" % place for place in places)
    trailer = b"/Size %d /Root 1 0 R" % (len(objects) + 1)
    if encrypted:
        # These hashes match no known password.
        trailer += (
            b" /ID [<00112233445566778899aabbccddeeff> <00112233445566778899aabbccddeeff>]"
            b" /Encrypt << /Filter /Standard /V 1 /R 2 /P -44 /O <%s> /U <%s> >>"
            % (b"41" * 32, b"42" * 32)
        )
    made += b"trailer\n<< %s >>\nstartxref\n%d\n%%%%EOF\n" % (trailer, start)
    return bytes(made)


def endless_pdf() -> bytes:
    """Returns a PDF of a few kilobytes that draws one form 2^60 times."""
    forms = [b"/X%d Do /X%d Do" % (n + 1, n + 1) for n in range(60)]
    forms.append(b"BT /F1 12 Tf 72 720 Td (deep) Tj ET")
    return pdf_of([b"/X0 Do"], forms)


def scanned_pdf() -> bytes:
    """Returns a PDF without text, like the scan of a page."""
    return pdf_of([b"0 0 612 792 re f"])


def docx(*paragraphs: str) -> bytes:
    """Returns a Word document."""
    body = "".join(f"<w:p><w:r><w:t>{paragraph}</w:t></w:r></w:p>" for paragraph in paragraphs)
    document = (
        f'<?xml version="1.0"?><w:document xmlns:w="{_WORD}"><w:body>{body}</w:body></w:document>'
    )
    return archive({"word/document.xml": document.encode()})


def archive(members: dict[str, bytes]) -> bytes:
    """Returns a ZIP archive as Word writes it, with these members."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("[Content_Types].xml", _TYPES)
        made.writestr("_rels/.rels", _RELATIONS)
        for name, data in members.items():
            made.writestr(name, data)
    return file.getvalue()


def docx_bomb() -> bytes:
    """Returns a Word document of 300 kB that unpacks to 300 MB."""
    file = io.BytesIO()
    with (
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made,
        made.open("word/document.xml", "w") as member,
    ):
        for _ in range(300):
            member.write(b" " * 1_000_000)
    return file.getvalue()


def xml_bomb() -> bytes:
    """Returns a Word document whose text consists of nested XML entities."""
    entities = '<!ENTITY a0 "ha">'
    entities += "".join(f'<!ENTITY a{n + 1} "{f"&a{n};" * 10}">' for n in range(12))
    document = (
        f'<?xml version="1.0"?><!DOCTYPE d [{entities}]><w:document xmlns:w="{_WORD}"><w:body>'
        "<w:p><w:r><w:t>&a12;</w:t></w:r></w:p></w:body></w:document>"
    )
    return archive({"word/document.xml": document.encode()})

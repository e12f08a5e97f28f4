"""PDF files page by page: sound, damaged, encrypted and without text."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import pytest
import xxhash
from pypdf import PdfReader, PdfWriter
from pypdf.constants import PageLabelStyle
from pypdf.errors import DependencyError

from sbert_search.index.index import Index
from sbert_search.search.engine import SearchEngine
from sbert_search.text.formats import files
from sbert_search.text.formats.files import PDF_COLUMNS, fingerprint, fingerprint_before_last
from sbert_search.text.formats.markup import Pdf
from sbert_search.text.formats.rows import BadRow
from tests.text.accounting import read_all


def make_pdf(pages: Sequence[str], title: str = "") -> bytes:
    """Write a PDF file without a library. Each page has one line of text."""
    texts = [f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode() for text in pages]
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for n, text in enumerate(texts):
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {5 + 2 * n} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>".encode()
        )
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(text), text))
    objects.append(f"<< /Title ({title}) >>".encode())
    out, places = io.BytesIO(), []
    out.write(b"%PDF-1.4\n")
    for number, content in enumerate(objects, start=1):
        places.append(out.tell())
        out.write(b"%d 0 obj\n%s\nendobj\n" % (number, content))
    start = out.tell()
    out.write(b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1))
    out.writelines(b"%010d 00000 n \n" % place for place in places)
    size = len(objects)
    out.write(b"trailer << /Size %d /Root 1 0 R /Info %d 0 R >>\n" % (size + 1, size))
    out.write(b"startxref\n%d\n%%%%EOF\n" % start)
    return out.getvalue()


def encrypted(data: bytes, password: str) -> bytes:
    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(data)))
    writer.encrypt(user_password=password, owner_password="owner", algorithm="RC4-128")
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


SCAN = ") Tj ET q BI /W 1 /H 1 /CS /G /BPC 8 ID x EI Q BT ("  # an image in place of a text


def page_of(*lines: str) -> str:
    """Write a page of several lines, for `make_pdf`."""
    return ") Tj 0 -14 Td (".join(lines)


def texts_of(tmp_path: Path, *pages: str) -> list[str]:
    (tmp_path / "a.pdf").write_bytes(make_pdf(pages))
    return [document.text for document in read_all(tmp_path)[0]]


PAGES = ["The moon pulls the sea.", "", "Wind heaps up sand."]


def test_each_page_with_text_is_a_document(tmp_path: Path) -> None:
    data = make_pdf(PAGES, "Coasts")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "c.pdf").write_bytes(data)
    documents, rejects, survey = read_all(tmp_path)
    assert not rejects
    assert [(d.doc_id, d.title, d.text, d.metadata["page"]) for d in documents] == [
        ("sub/c.pdf#page=1", "Coasts", "The moon pulls the sea.", 1),
        ("sub/c.pdf#page=3", "Coasts", "Wind heaps up sand.", 3),
    ]
    assert documents[0].metadata["path"] == "sub/c.pdf"
    assert documents[0].source == f"{tmp_path}/sub/c.pdf:page 1"
    whole = fingerprint(data)
    assert [d.fingerprint for d in documents] == [fingerprint_before_last(whole), whole]
    assert survey.columns["page"] == "int64"
    (tmp_path / "n.pdf").write_bytes(make_pdf(["text"]))
    assert read_all(tmp_path / "n.pdf")[0][0].title == "n.pdf"


def test_forms_of_letters_in_fonts_are_letters() -> None:
    title = "".join(f"\\{byte:03o}" for byte in "\ufeffﬅ ﬄ ﻛﺘﺎﺏ ﻻ ﷼ xﱞ x² ½ Ａ".encode("utf-16-be"))  # noqa: RUF001
    pdf = Pdf(make_pdf([page_of(r"The \256sh is con-", r"\256rmed")], title))  # \256 is U+FB01
    assert pdf.title == "st ffl كتاب لا ریال x\u064c\u0651 x² ½ Ａ"  # noqa: RUF001
    assert list(pdf.pages()) == [(1, "The fish is confirmed")]


def test_words_that_a_line_end_splits_are_joined(tmp_path: Path) -> None:
    lines = ["The iden-", "tifier of 24-", "hour wells, U-", "Boats and Anti-", "Gone"]
    (tmp_path / "a.pdf").write_bytes(make_pdf([page_of(*lines)], title="untitled"))
    (document,), *_ = read_all(tmp_path)
    assert document.text == "The identifier of 24-\nhour wells, U-\nBoats and Anti-\nGone"
    assert document.title == "a.pdf"


@pytest.mark.parametrize(
    ("lines", "other", "joined"),
    [
        (["A long-", "term plan."], "Long-term aims.", "A long-term plan."),
        (
            ["A long-", "term plan."],
            "A longterm aim, a long-term one, longterm.",
            "A longterm plan.",
        ),
        (["A long-", "term plan."], "No long term.", "A longterm plan."),  # joined if in doubt
        (["some infor-", "mation"], "The information in-situ.", "some information"),
        (["two-", "dimensional"], "Two-way, dimensional.", "two-dimensional"),
        (["two-", "dimensional"], "Dimensional.", "twodimensional"),
        (["state-of-the-", "art"], "the", "state-of-the-art"),
        (["signal-to-", "noise"], "noise", "signal-to-noise"),
        (["signal-to-", "noise"], "A ratio.", "signal-to-noise"),
        (["self-organi-", "zation"], "the", "self-organization"),
        (["iden-", "tifi-", "cation"], "the", "identification"),
        (["Thirty-", "one percent"], "thirtyone", "Thirty-one percent"),
        (["the one-hundred-forty-", "second of"], "the", "the one-hundred-forty-second of"),
        (["some twenty-", "somethings"], "the", "some twentysomethings"),
        (["pre-", "and post-war"], "the", "pre-\nand post-war"),
        (["Der Wasser-", "stoff"], "Der Stoff, das Wasser-Gemisch.", "Der Wasserstoff"),
        (["die Nord-", "see"], "Die Nordsee, die See.", "die Nordsee"),
        (["Vor-", "und Nachteile"], "und", "Vor-\nund Nachteile"),
        (["der Ist-", "zustand"], "Der Ist-zustand.", "der Ist-zustand"),
    ],
)
def test_a_hyphen_at_a_line_end_stays_where_the_file_has_it(
    tmp_path: Path, lines: list[str], other: str, joined: str
) -> None:
    assert texts_of(tmp_path, page_of(*lines), other)[0] == joined


def test_running_headers_footers_and_page_numbers_are_left_out(tmp_path: Path) -> None:
    bodies = ["Tides rise.", "Sand drifts.", "Wind blows.", "Rain falls.", "Snow melts."]
    left, right = "Brandt et al.", "Journal of Coasts 29 (2019)"
    pages = [
        page_of(
            *([] if n == 1 else [left if n % 2 == 0 else f"{right} {n + 99}"]), body, f"Page {n}"
        )
        for n, body in enumerate(bodies, 1)
    ]
    # The first page has no header. Each header is on two pages, the footer on all.
    assert texts_of(tmp_path, *pages[:4]) == [
        "Tides rise.", f"{left}\nSand drifts.", f"{right} 102\nWind blows.", f"{left}\nRain falls."
    ]  # fmt: skip
    assert (
        texts_of(tmp_path, *[page_of(right, b, str(n), "(c) 2019") for n, b in enumerate(bodies)])
        == bodies
    )


def test_a_footer_is_left_out_below_a_header_that_the_first_page_lacks(tmp_path: Path) -> None:
    heads = ["Journal of Coasts", "Brandt et al.", "Brandt et al."]  # first in the file, as of Word
    both = [*zip(heads, ["Tides rise.", "Sand drifts.", "Wind blows."], strict=True)]
    pages = [(head, f"{n} (c) 2014", body) for n, (head, body) in enumerate(both, 1)]
    assert texts_of(tmp_path, *[page_of(*page) for page in pages]) == [
        f"{head}\n{body}" for head, body in both
    ]
    last = [(body, "text", f"{n} (c) 2014", f"note {body}") for n, (_, _, body) in enumerate(pages)]
    assert "2014" not in "".join(texts_of(tmp_path, *[page_of(*page) for page in last]))


@pytest.mark.parametrize(
    "pages",
    [
        [page_of("Coasts", "one"), page_of("Coasts", "two")],  # two pages
        [
            page_of("Room 7 cost 12", "a"),
            page_of("Room 3 cost 9", "b"),
            page_of("Room 5 cost 20", "c"),
        ],
        [page_of("5.1", "a"), page_of("3.9", "b"), page_of("7.2", "c")],  # rows of a table
        ["Slide 1", "Slide 2", "Slide 3"],  # nothing else
        [  # rows of a table with other numbers
            page_of("a", "Room 1 costs 9 a day", "b"),
            page_of("c", "Room 2 costs 12 a day", "d"),
            page_of("e", "Room 3 costs 10 a day", "f"),
        ],
        [
            page_of(*(w * n for w in "abcd"), f"Task {n}", *(w * n for w in "efgh"))
            for n in (1, 2, 3)
        ],
        [  # not on every page
            page_of("a", "Task 1", "b"),
            page_of("c", "Task 2", "d"),
            page_of("e", "Task 3", "f"),
            page_of("g", "h"),
        ],
        [page_of("a", "Coasts", "b"), page_of("c", "Coasts", "d"), page_of("e", "Coasts", "f")],
    ],
)
def test_other_lines_stay(tmp_path: Path, pages: list[str]) -> None:
    assert texts_of(tmp_path, *pages) == [page.replace(") Tj 0 -14 Td (", "\n") for page in pages]


def test_pages_that_are_only_images_are_named_in_one_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "papers"
    folder.mkdir()
    stamp = page_of("Library of Coasts", SCAN)
    pages = [page_of("Library of Coasts", "moon"), SCAN, "", stamp, stamp, "sea", SCAN]
    (folder / "a.pdf").write_bytes(make_pdf(pages))
    (folder / "b.pdf").write_bytes(make_pdf(["text", SCAN]))
    (folder / "c.pdf").write_bytes(make_pdf(["text", ""]))  # a blank page
    index = Index.build(folder, model="hashing")
    said = f"4 in {folder}/a.pdf (pages 2, 4-5, 7), 1 in {folder}/b.pdf (page 2)."
    assert capsys.readouterr().err.count(said) == 1
    assert {d.text for d in index} == {"moon", "sea", "text"}


@pytest.mark.parametrize(
    "title",
    [
        "Microsoft Word - final_v7_REVISED.docx", "untitled", "(anonymous)", "Untitled-3",
        "thesis.DOC", "a.indd", "Slide 1", "PowerPoint Presentation", "paper.pdf", "", " ",
    ],
)  # fmt: skip
def test_a_title_that_a_program_made_up_is_none(title: str) -> None:
    assert Pdf(make_pdf(["text"], title)).title == ""


@pytest.mark.parametrize("title", ["Slides of dunes", "Document retrieval", "The .doc format"])
def test_a_title_that_looks_alike_is_one(title: str) -> None:
    assert Pdf(make_pdf(["text"], title)).title == title


def test_author_and_day_of_creation_are_columns(tmp_path: Path) -> None:
    day = "Coasts) /Author (A. Novak) /CreationDate (D:20190503235900-08'00'"
    (tmp_path / "a.pdf").write_bytes(make_pdf(["moon"], day))
    (tmp_path / "b.pdf").write_bytes(make_pdf(["sea"], "x) /Author (anonymous) /CreationDate (May"))
    (tmp_path / "c.md").write_text("---\nauthor: B. Ray\ncreated: 2021-01-31\npage: 9\n---\nSand.")
    documents, rejects, survey = read_all(tmp_path)
    assert not rejects
    found = [(d.metadata.get("author"), d.metadata.get("created")) for d in documents]
    assert found == [("A. Novak", date(2019, 5, 3)), (None, None), ("B. Ray", date(2021, 1, 31))]
    assert (survey.columns["created"], survey.columns["page"]) == ("date", "int64")
    about = "x) /Subject (Tides) /Keywords (moon; spring tide, "
    (tmp_path / "e.pdf").write_bytes(make_pdf(["moon"], about))
    (document,), _, survey = read_all(tmp_path / "e.pdf")
    assert (document.metadata["subject"], document.title) == ("Tides", "x")
    assert document.metadata["keywords"] == ["moon", "spring tide"]
    (tmp_path / "d.pdf").write_bytes(make_pdf(["moon"], "x) /Author (1984"))
    assert read_all(tmp_path / "d.pdf")[2].columns["author"] == "string"


def test_the_pages_before_a_damaged_one_are_kept(tmp_path: Path) -> None:
    length = len(b"BT /F1 12 Tf 72 720 Td (three) Tj ET")
    sound = make_pdf(["one", "two", "three", "four"])
    header = b"<< /Length %d >>" % length
    at = sound.index(header, sound.index(b"(two)"))
    damaged = sound[:at] + b"<< /Filter /Foo " + header[3:] + sound[at + len(header) :]
    (tmp_path / "c.pdf").write_bytes(damaged)
    documents, [reject], _ = read_all(tmp_path)
    assert [document.text for document in documents] == ["one", "two"]
    assert reject.reason.startswith(
        "page 3, which is left out with all later pages, cannot be read"
    )


def test_a_page_has_its_printed_number_if_it_is_another(tmp_path: Path) -> None:
    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(make_pdf(["a", "b", "c", "d"]))))
    writer.set_page_label(0, 1, style=PageLabelStyle.LOWERCASE_ROMAN)
    writer.set_page_label(2, 3, style=PageLabelStyle.DECIMAL, start=101)
    writer.write(tmp_path / "a.pdf")
    (tmp_path / "b.pdf").write_bytes(make_pdf(["e"]))
    documents = read_all(tmp_path)[0]
    labels = [document.metadata.get("page_label") for document in documents]
    assert labels == ["i", "ii", "101", "102", None]
    named = {"/Author": "A", "/Subject": "s", "/Keywords": "k", "/CreationDate": "D:20200102"}
    writer.add_metadata(named)
    writer.write(tmp_path / "a.pdf")
    assert read_all(tmp_path)[0][0].metadata.keys() == PDF_COLUMNS
    broken = (tmp_path / "a.pdf").read_bytes().replace(b"/Nums", b"/Numb")
    assert Pdf(broken).labels == []


def without_references(*pages: str) -> dict[int, str]:
    return dict(Pdf(make_pdf(pages), references="drop").pages())


BODY = ("The moon pulls the sea.", "It does so twice a day.")
LIST = ("[1] Tides, 2001.", "[2] Waves, 2002.")


@pytest.mark.parametrize(
    "heading",
    [
        "References", "7. REFERENCES", "VII. R EFERENCES", "5.2 Literaturverzeichnis",
        "Bibliography:", "A. Works Cited", "6 Referencias",
    ],
)  # fmt: skip
def test_a_list_of_references_is_left_out_on_demand(heading: str) -> None:
    pages = [page_of(*BODY), page_of("It ends.", heading, LIST[0]), page_of(LIST[1], "3, 12-19.")]
    assert without_references(*pages) == {1: "\n".join(BODY), 2: "It ends."}
    kept = dict(Pdf(make_pdf(pages)).pages())
    assert kept[2] == f"It ends.\n{heading}\n{LIST[0]}"
    pdf = Pdf(make_pdf(pages), "drop")
    assert ([n for n, _ in pdf.pages()], pdf.cut) == ([1, 2], [2, 3])
    assert kept.keys() == {1, 2, 3}


def test_an_appendix_after_the_references_is_kept() -> None:
    pages = without_references(
        page_of("Contents", "References", "Appendix A", *BODY),
        page_of("Preferences", "References to others are given below.", "References", *LIST),
        page_of(
            "References", "[3] See the appendix of Dunes.", "A. Appendix: tables", "High water"
        ),
        page_of("Supplementary", "References", LIST[0]),
    )
    assert pages == {
        1: "\n".join(("Contents", "References", "Appendix A", *BODY)),
        2: "Preferences\nReferences to others are given below.",
        3: "A. Appendix: tables\nHigh water",
        4: "Supplementary",
    }


def test_of_several_lists_without_a_clear_end_only_the_last_is_left_out() -> None:
    chapter = page_of(*BODY, "References", *LIST)
    pages = without_references(*[chapter, page_of(*BODY, "More.")] * 3, chapter)
    assert [n for n, text in pages.items() if "[1]" in text] == [1, 3, 5]
    assert pages[7] == "\n".join(BODY)
    assert without_references(page_of("References", *LIST)) != {}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"no PDF at all", "the PDF file cannot be read"),
        (
            b"\xef\xbb\xbf\r\n<!DOCTYPE html><title>Log in</title>",
            "this is an HTML page and no PDF file;",
        ),
        (b"<HTML lang='en'><p>moved</p>", "this is an HTML page and no PDF file;"),
        (b"", None),
        (make_pdf(PAGES)[:200], "the PDF file cannot be read"),
        (b"%PDF-1.4\n" + b"[" * 100_000, "the PDF file cannot be read"),
        (b"%PDF-1.4\n" + b"<<" * 100_000 + b"\nstartxref\n9\n%%EOF", "the PDF file cannot be read"),
        (encrypted(make_pdf(PAGES), "secret"), "the PDF file is encrypted; remove its password"),
        (make_pdf(["", ""]), "no page has text; a scanned PDF needs text recognition"),
    ],
)
def test_a_pdf_without_text_for_us_is_a_bad_row(
    tmp_path: Path, data: bytes, reason: str | None
) -> None:
    (tmp_path / "a.md").write_text("a note")
    (tmp_path / "b.pdf").write_bytes(data)
    documents, rejects, _ = read_all(tmp_path)
    assert [document.doc_id for document in documents] == ["a.md"]
    assert [reject.source for reject in rejects] == [f"{tmp_path}/b.pdf:1"] * (reason is not None)
    assert all(reject.reason.startswith(str(reason)) for reject in rejects)


def test_a_pdf_without_a_password_for_reading_is_read(tmp_path: Path) -> None:
    (tmp_path / "b.pdf").write_bytes(encrypted(make_pdf(PAGES), ""))
    assert len(read_all(tmp_path)[0]) == 2


def test_aes_without_cryptography_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def needs_package(*_: object) -> None:
        raise DependencyError("cryptography>=3.1 is required for AES algorithm")

    monkeypatch.setattr(PdfReader, "decrypt", needs_package)
    with pytest.raises(BadRow, match=r"encrypted with AES.*: python -m pip install cryptography"):
        Pdf(encrypted(make_pdf(PAGES), ""))


def test_without_pypdf_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pypdf", None)
    with pytest.raises(BadRow, match=r"a PDF file needs pypdf: python -m pip install -e \. in"):
        Pdf(make_pdf(PAGES))


def test_the_notes_of_pypdf_are_silent_only_while_it_reads(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logger = logging.getLogger("pypdf")
    caplog.set_level(logging.INFO, "pypdf")
    pdf = Pdf(make_pdf(PAGES).replace(b"startxref\n", b"startxref\n9"))
    for _ in pdf.pages():
        assert logger.level == logging.INFO
    assert logger.level == logging.INFO
    assert caplog.records == []
    with pytest.raises(BadRow):
        Pdf(b"no PDF")
    assert logger.level == logging.INFO


def test_a_hit_has_its_page_and_a_sync_replaces_pages(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "c.pdf").write_bytes(make_pdf(["one moon", "two sea", "three sand"]))
    index = Index.create(tmp_path / "i", model="hashing")
    assert index.sync(folder).added == ("c.pdf",)
    hit = SearchEngine(index).search("sea", 1, mode="dense")[0]
    assert (hit.doc_id, hit.metadata["page"]) == ("c.pdf#page=2", 2)
    assert index.sync(folder).unchanged == 1
    index.delete("c.pdf#page=3")  # as after a run that was killed between two commits
    assert index.sync(folder).replaced == ("c.pdf",)
    assert len(index) == 3
    (folder / "c.pdf").write_bytes(make_pdf(["one moon", "two lake"]))
    assert index.sync(folder).replaced == ("c.pdf",)
    assert {document.doc_id: document.text for document in index} == {
        "c.pdf#page=1": "one moon",
        "c.pdf#page=2": "two lake",
    }
    assert index.sync(folder).unchanged == 1
    (folder / "c.pdf").unlink()
    assert index.sync(folder, allow_empty=True).deleted == ("c.pdf",)
    assert len(index) == 0


def test_the_version_of_the_extraction_is_raised_with_what_is_extracted(tmp_path: Path) -> None:
    """A sync reads unchanged files again only if the version is another one."""
    html = "<title>T</title><nav>menu</nav><main><p>one</p><p>two &amp; three</p></main>"
    samples = {
        "a.txt": "plain\n text\n",
        "b.md": "---\ntitle: M\ntags: [a]\n---\n# Head\n\n*soft* `code`\n",
        "c.html": html,
        "d.rst": "Title\n=====\n\nBody ``x``.\n",
    }
    for name, text in samples.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "e.pdf").write_bytes(make_pdf(["iden-) Tj 0 -14 Td (tifier"], "untitled"))
    found = [(d.title, d.text, d.metadata.get("tags")) for d in read_all(tmp_path)[0]]
    digest = xxhash.xxh3_64_hexdigest(repr(found).encode())
    assert (files._EXTRACTION, digest) == (9, "be593cbd05bae5e2"), found

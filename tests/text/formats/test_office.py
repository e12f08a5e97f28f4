"""Word documents are documents, and the rows of Excel workbooks are rows."""

from __future__ import annotations

import sys
import zipfile
from datetime import datetime
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from sbert_search import Index
from sbert_search.errors import CorpusError
from sbert_search.records import Query
from sbert_search.text.formats.rows import RawRow
from sbert_search.text.labelled.pairs import read_pairs
from sbert_search.text.labelled.retrieval import read_queries
from sbert_search.text.labelled.texts import read_labelled_texts
from sbert_search.text.sources import classify, read_rows


def test_a_word_document_has_its_title_headings_and_tables(tmp_path: Path) -> None:
    docx = pytest.importorskip("docx")
    document = docx.Document()
    document.core_properties.title = ""
    document.add_heading("Mills", 0)
    document.add_heading("On rivers", 1)
    document.add_paragraph("A river turns the wheel.")
    table = document.add_table(2, 2)
    for at, text in enumerate(("part", "use", "wheel", "turns")):
        table.cell(at // 2, at % 2).text = text
    document.save(tmp_path / "mills.docx")
    index = Index.build(tmp_path, model="hashing")
    (found,) = index
    assert (found.doc_id, found.title) == ("mills.docx", "Mills")
    assert found.text == (
        "Mills\n\n# On rivers\n\nA river turns the wheel.\n\npart | use\n\nwheel | turns"
    )


def _tag(name: str, *inside: str) -> str:
    """Write an element, in the namespace of Word unless its name has another prefix."""
    name = name if ":" in name.split()[0] else f"w:{name}"
    return f"<{name}>{''.join(inside)}</{name.split()[0]}>"


def _run(text: str) -> str:
    return _tag("r", _tag('t xml:space="preserve"', text))


def _p(*inside: str, style: str = "") -> str:
    properties = _tag("pPr", f'<w:pStyle w:val="{style}"/>') if style else ""
    return _tag("p", properties, *inside)


def _sdt(*inside: str) -> str:
    return _tag("sdt", "<w:sdtPr/>", _tag("sdtContent", *inside))


def _box(*inside: str) -> str:
    return _tag("pict", _tag("v:shape", _tag("v:textbox", _tag("txbxContent", *inside))))


def _either(choice: str, fallback: str) -> str:
    choices = _tag('mc:Choice Requires="v"', choice), _tag("mc:Fallback", fallback)
    return _tag("r", _tag("mc:AlternateContent", *choices))


def _docx(path: Path, body: str) -> Path:
    """Write a Word document of a body in XML."""
    docx = pytest.importorskip("docx")
    schemas = "http://schemas.openxmlformats.org"
    names = {
        "w": f"{schemas}/wordprocessingml/2006/main",
        "m": f"{schemas}/officeDocument/2006/math",
        "mc": f"{schemas}/markup-compatibility/2006",
        "v": "urn:schemas-microsoft-com:vml",
    }
    declared = " ".join(f'xmlns:{name}="{value}"' for name, value in names.items())
    document = docx.Document()
    document.core_properties.title = "Mills"
    for block in docx.oxml.parse_xml(f"<w:body {declared}>{body}</w:body>"):
        document.element.body.insert(len(document.element.body) - 1, block)
    document.save(path)
    return path


_DELETED = _tag("del", _tag("r", _tag("delText", "gone ")))
_JOINED = _tag("pPr", _tag("rPr", _tag("del")))  # the end of the paragraph is deleted


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (_p(_run("The "), _tag("ins", _run("new ")), _DELETED, _run("mill")), "The new mill"),
        (_p(_tag("moveFrom", _run("a ")), _tag("moveTo", _run("b"))), "b"),
        (_p(_JOINED, _run("The mi")) + _p(_run("ll"), style="Heading1"), "# The mill"),
        (_p(_run("a")) + 2 * _p(_JOINED, _DELETED) + _p(_run("b")), "a\n\nb"),
        (_p(_sdt(_run("On ")), _run("mills"), style="Heading2"), "## On mills"),
        (_sdt(_p(_run("a")), _sdt(_p(_run("b")))) + _p(_run("c")), "a\n\nb\n\nc"),
        (_p(_sdt(_run("one")), style="ListBullet") + _p(_tag("ins", _run("two"))), "one\n\ntwo"),
        (_p(_run("See "), _tag('fldSimple w:instr="REF x"', _run("page 3"))), "See page 3"),
        (_p(_tag("hyperlink", _tag("ins", _run("our ")), _run("site"))), "our site"),
        (
            _p(
                _run("Anchor"),
                _either(
                    _box(_p(_run("Box"), style="Heading1"), _p(_run("b"))),
                    _box(_p(_run("Box")), _p(_run("b"))),
                ),
                _run(" text"),
            )
            + _p(_run("After")),
            "Anchor text\n\n# Box\n\nb\n\nAfter",
        ),
        (_p(_either("", _box(_p(_run("old"))))), "old"),
        (_p(_tag("r", _box(_p(_run("a"))), _box(_p(_run("b"))))), "a\n\nb"),
        (
            _p(_tag("r", _tag("ruby", _tag("rt", _run("x")), _tag("rubyBase", _run("東")))))
            + _p(_run("京")),
            "東\n\n京",
        ),
        (
            _p(
                _run("So "),
                _tag(
                    "m:oMath",
                    _tag("m:r", _tag("m:t", "v=")),
                    _tag("m:f", _tag("m:num", _tag("m:t", "s")), _tag("m:den", _tag("m:t", "t"))),
                ),
            ),
            "So v=s/t",
        ),
    ],
)
def test_all_that_is_seen_with_changes_accepted_is_read(
    tmp_path: Path, body: str, text: str
) -> None:
    (found,) = Index.build(_docx(tmp_path / "a.docx", body), model="hashing")
    assert found.text == text


def test_tables_of_a_word_document_are_read_whole(tmp_path: Path) -> None:
    def cell(*inside: str, more: str = "") -> str:
        return _tag("tc", _tag("tcPr", more), *inside)

    def row(*cells: str) -> str:
        return _tag("tr", *cells)

    changed = cell(_p(_run("a")), _p(_tag("ins", _run("b"))))
    wide = cell(_p(_run("wide")), more='<w:gridSpan w:val="2"/>')
    tall = cell(_p(_run("tall")), more='<w:vMerge w:val="restart"/>')
    below = cell(_p(), more="<w:vMerge/>")
    inner = _tag("tbl", "<w:tblPr/><w:tblGrid/>", row(cell(_p(_run("x"))), cell(_p(_run("y")))))
    table = _tag(
        "tbl",
        "<w:tblPr/><w:tblGrid/>",
        row(changed, _sdt(cell(_p(_run("held"))))),
        row(_tag("trPr", _tag("del")), cell(_p(_DELETED)), cell(_p(_run("gone")))),
        _sdt(row(wide, tall)),
        row(cell(_p(_run("1"))), cell(_p(_run("2"))), below),
        row(cell(_p(_run("in")), inner, _p()), cell(_p(_tag("r", _box(_p(_run("box"))))))),
        row(cell(_p()), cell(_p())),
        row(cell(_p(_run("gone")), more="<w:cellDel/>"), cell(_p(_run("last")))),
    )
    (found,) = Index.build(_docx(tmp_path / "a.docx", table), model="hashing")
    rows = ["a\nb | held", "wide | tall", "1 | 2 | tall", "in\nx | y | box", "last"]
    assert found.text.split("\n\n") == rows


def test_a_broken_word_document_is_named(tmp_path: Path) -> None:
    pytest.importorskip("docx")
    (tmp_path / "a.docx").write_bytes(b"PK no archive")
    with pytest.raises(CorpusError, match=r"a\.docx:1: the \.docx file cannot be read"):
        Index.build(tmp_path, model="hashing")


def workbook(path: Path, rows: list[list[object]]) -> Path:
    """Write a workbook of one sheet, whose cells are texts, numbers and flags."""

    def cell(value: object) -> str:
        if isinstance(value, bool):
            return f'<c t="b"><v>{int(value)}</v></c>'
        if isinstance(value, int | float):
            return f"<c><v>{value}</v></c>"
        if isinstance(value, str):
            return f'<c t="inlineStr"><is><t>{escape(value)}</t></is></c>'
        if value is None:
            return "<c/>"
        assert isinstance(value, datetime)
        days = (value - datetime(1899, 12, 30)).total_seconds() / 86_400
        return f'<c s="1"><v>{days}</v></c>'

    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006"
    body = "".join(f"<row>{''.join(map(cell, row))}</row>" for row in rows)
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{package}/content-types"/>',
        "_rels/.rels": f'<Relationships xmlns="{package}/relationships">'
        f'<Relationship Id="r1" Type="{office}/officeDocument" Target="xl/workbook.xml"/>'
        "</Relationships>",
        "xl/workbook.xml": f'<workbook xmlns="{main}" xmlns:r="{office}"><sheets>'
        '<sheet name="FAQ" sheetId="1" r:id="r1"/></sheets></workbook>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{package}/relationships">'
        f'<Relationship Id="r1" Type="{office}/worksheet" Target="worksheets/sheet1.xml"/>'
        "</Relationships>",
        "xl/styles.xml": f'<styleSheet xmlns="{main}"><cellXfs><xf numFmtId="0"/>'
        '<xf numFmtId="22"/></cellXfs></styleSheet>',
        "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{main}"><sheetData>{body}</sheetData>'
        "</worksheet>",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in parts.items():
            archive.writestr(name, text)
    return path


def test_rows_of_a_workbook_keep_their_types(tmp_path: Path) -> None:
    pytest.importorskip("python_calamine")
    rows: list[list[object]] = [
        ["id", "text", "Preis", "n", "seit", "neu"],
        ["a", "Größe & Mühle", 23.34, 3, datetime(2025, 9, 15, 12), True],
        [None] * 6,
        ["b", "Rad", None, 4, datetime(2024, 1, 2), False],
    ]
    path = workbook(tmp_path / "faq.xlsx", rows)
    read = list(read_rows(classify(path)))
    assert all(isinstance(row, RawRow) for row in read)
    assert [row.source.rpartition("/")[2] for row in read] == [
        "faq.xlsx:FAQ:row 2",
        "faq.xlsx:FAQ:row 4",
    ]
    assert list(read_rows(classify(path), skip=1)) == read[1:]
    index = Index.build(path, model="hashing")
    assert [each.doc_id for each in index.documents("Preis > 20 AND n = 3 AND neu")] == ["a"]
    assert [each.doc_id for each in index.documents("seit >= '2025-01-01'")] == ["a"]
    assert "2025-09-15 12:00" in str(index.get("a").metadata["seit"])  # type: ignore[union-attr]


def test_years_name_columns_of_a_workbook_and_large_numbers_are_decimals(tmp_path: Path) -> None:
    pytest.importorskip("python_calamine")
    rows: list[list[object]] = [
        ["id", "text", 2019.0, "n"],
        ["a", "x", 3, 0.5],
        ["b", "y", 4, 6e23],
    ]
    index = Index.build(workbook(tmp_path / "n.xlsx", rows), model="hashing")
    assert index.info().columns == {"2019": "int64", "n": "float64"}
    assert [each.doc_id for each in index.documents("n > 1e23")] == ["b"]


def test_numbers_of_a_workbook_are_ids_and_texts_of_labelled_data(tmp_path: Path) -> None:
    rows: list[list[object]] = [["_id", "text", "positive", "label"], [7.0, 1984.0, "Orwell", 1.0]]
    path = workbook(tmp_path / "q.xlsx", rows)
    assert read_queries(path) == [Query("7", "1984")]
    (pair,) = read_pairs(path, text1="text")
    assert (pair.text1, pair.text2, pair.label) == ("1984", "Orwell", "1")
    (labelled,) = read_labelled_texts(path)
    assert (labelled.text, labelled.label) == ("1984", "1")


def test_a_workbook_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    pytest.importorskip("python_calamine")
    (tmp_path / "a.xlsx").write_bytes(b"no workbook")
    with pytest.raises(CorpusError, match=r"a\.xlsx: the workbook cannot be read"):
        list(read_rows(classify(tmp_path / "a.xlsx")))


@pytest.mark.parametrize(("name", "module"), [("a.docx", "docx"), ("a.xlsx", "python_calamine")])
def test_a_missing_library_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / name).write_bytes(b"PK")
    with pytest.raises(CorpusError, match=r"pip install -e '\.\[office\]'"):
        Index.build(tmp_path / name, model="hashing")

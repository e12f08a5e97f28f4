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
from sbert_search.text.formats.rows import RawRow
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


def test_a_broken_word_document_is_named(tmp_path: Path) -> None:
    pytest.importorskip("docx")
    (tmp_path / "a.docx").write_bytes(b"PK no archive")
    with pytest.raises(CorpusError, match=r"a\.docx:1: the \.docx file cannot be read"):
        Index.build(tmp_path, model="hashing")


def _workbook(path: Path, rows: list[list[object]]) -> Path:
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
    path = _workbook(tmp_path / "faq.xlsx", rows)
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

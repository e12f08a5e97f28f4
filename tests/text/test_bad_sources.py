"""A source that cannot be read as a whole is named with what to do."""

from __future__ import annotations

import glob
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest

from sbert_search.errors import CorpusError
from sbert_search.text.documents import CorpusReader, FieldNames
from sbert_search.text.sources import expand
from tests.text.accounting import read_all, zstd


def refusal(*sources: str | Path, fields: FieldNames | None = None) -> str:
    with pytest.raises(CorpusError) as caught:
        CorpusReader(sources, fields=fields).survey()
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.jsonl", b"", "c.jsonl: holds no rows"),
        ("c.jsonl", b"\xef\xbb\xbf\n\n", "c.jsonl: holds no rows"),
        ("c.jsonl.gz", b"", "c.jsonl.gz: holds no rows"),
        ("c.csv", b"", "c.csv: holds no rows"),
        ("c.csv", b"id,text\n", "c.csv: holds no rows"),
        ("c.txt", b"\n \n", "c.txt: holds no rows"),
        ("c.csv", b"id,text,id\n1,a,2\n", "c.csv:1: the header names 'id' twice"),
        ("c.csv", b'id,"te"xt\n1,a\n', "c.csv:1: broken record"),
        ("c.csv", b"id,te\xffxt\n1,a\n", "c.csv:1: invalid UTF-8 or a lone surrogate"),
        ("c.csv", b"id:text\n1:a\n", "c.csv: no text field among 'id:text'. Name the text field"),
        ("c.jsonl", b'{"id": "1", "tekst": "a"}\n', "no text field among 'id', 'tekst'. Name "),
        ("c.jsn", b"[]", "c.jsn: unknown file extension. Known: .jsonl"),
        ("c.parquet.gz", b"", "c.parquet.gz: unknown file extension"),
        ("c.parquet", b"PAR1 but not really PAR1", "c.parquet: damaged Parquet file"),
        ("c.parquet", b"", "c.parquet: damaged Parquet file"),
        ("c.arrow", b"ARROW1\0\0 but not really", "c.arrow: cannot be read as an Arrow file"),
        ("c.feather", b"FEA1 old", "c.feather: cannot be read as an Arrow file: "
         "Feather version 1; write it again as version 2"),
    ],
)  # fmt: skip
def test_a_file_without_documents(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert message in refusal(tmp_path / name)


def test_paths_that_are_no_source(tmp_path: Path) -> None:
    assert "No source to read" in refusal()
    assert f"{tmp_path}/no.jsonl: cannot be read: No such file" in refusal(tmp_path / "no.jsonl")
    assert f"{tmp_path}/*.jsonl: no file matches this pattern" in refusal(f"{tmp_path}/*.jsonl")
    assert f"{tmp_path}: the folder has no file that can be read. Known: .js" in refusal(tmp_path)
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert "pipe.jsonl: not a regular file. Pipe JSON lines" in refusal(tmp_path / "pipe.jsonl")
    (tmp_path / "shard.jsonl").write_text('{"text": "a"}')
    message = refusal(tmp_path)
    assert f"{tmp_path}: the folder has .jsonl files, whose rows are documents." in message
    assert f"such as '{tmp_path}/*.jsonl'." in message


def test_an_empty_source_is_not_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.md").write_text("text")
    for sources in ("", [""], ["secret.md", ""]):
        with pytest.raises(CorpusError, match="A source is empty; name a file"):
            CorpusReader(sources)


def test_what_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("a")
    (tmp_path / "c.jsonl").write_text('{"text": "a"}')
    (tmp_path / "c.parquet").write_text("")

    def deny(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", deny)
        for name in ("c.jsonl", "c.parquet"):
            assert f"{name}: cannot be read: Permission denied" in refusal(tmp_path / name)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", deny)
        assert "notes/a.txt:1: cannot be read: Permission denied" in refusal(tmp_path / "notes")
    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", deny)
        assert "notes: cannot be read: Permission denied" in refusal(tmp_path / "notes")


def test_a_file_of_a_folder_without_permission_is_a_bad_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.md", "b.md"):
        (tmp_path / name).write_text(name)
    open_file, read_bytes = Path.open, Path.read_bytes

    def denied(path: Path) -> None:
        if path.name == "b.md":
            raise PermissionError(13, "Permission denied")

    def deny_open(path: Path, *args: Any, **options: Any) -> Any:
        denied(path)
        return open_file(path, *args, **options)

    def deny_bytes(path: Path) -> bytes:
        denied(path)
        return read_bytes(path)

    monkeypatch.setattr(Path, "open", deny_open)
    monkeypatch.setattr(Path, "read_bytes", deny_bytes)
    documents, [reject], _ = read_all(tmp_path)
    assert [document.doc_id for document in documents] == ["a.md"]
    assert reject.reason == "cannot be read: Permission denied"


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_repeated_column_is_refused(tmp_path: Path, form: str) -> None:
    table = pa.table([["1"], ["first"], ["second"]], names=["id", "text", "text"])
    if form == "parquet":
        pq.write_table(table, tmp_path / "t.parquet")
    else:
        with pa.ipc.new_file(str(tmp_path / "t.arrow"), table.schema) as file:
            file.write_table(table)
    assert "two columns have the name 'text'; rename one" in refusal(tmp_path / f"t.{form}")
    with pytest.raises(CorpusError, match="The table has two columns 'text'; rename one"):
        CorpusReader(table)


def test_what_precedes_the_damage_of_a_zst_file_is_kept(tmp_path: Path) -> None:
    lines = [json.dumps({"text": os.urandom(16).hex()}) + "\n" for _ in range(2000)]
    frames = [zstd("".join(part).encode()) for part in (lines[:1000], lines[1000:])]
    (tmp_path / "c.jsonl.zst").write_bytes(frames[0] + frames[1][:-5000])
    documents, [_], _ = read_all(tmp_path / "c.jsonl.zst")
    assert len(documents) >= 1000 - (1 << 10) // len(lines[0])


def test_bad_files_of_a_folder_are_rows(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("fine")
    (tmp_path / "b.txt").write_bytes(b"caf\xe9")
    (tmp_path / "c.txt").write_text(" \n")  # as a blank line, no row
    os.mkfifo(tmp_path / "d.txt")
    (tmp_path / "e.txt").symlink_to("nowhere")
    with (tmp_path / "f.txt").open("wb") as file:
        file.truncate(65 << 20)
    (tmp_path / os.fsdecode(b"g\xff.txt")).write_text("fine")
    documents, rejects, _ = read_all(tmp_path)
    assert [doc.doc_id for doc in documents] == ["a.txt"]
    assert [(reject.source.removeprefix(f"{tmp_path}/"), reject.reason) for reject in rejects] == [
        ("b.txt:1", "invalid UTF-8 at byte 4"),
        ("d.txt:1", "not a regular file"),
        ("e.txt:1", "not a regular file"),
        ("f.txt:1", "the file has 65 MiB, and one document may have 64 MiB"),
        (r"g\xff.txt:1", "invalid UTF-8 or a lone surrogate in 'id'"),
    ]


def test_fields_that_are_not_there_get_a_suggestion(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text('{"key": "1", "story": "a", "head": "b"}\n')
    named = {
        "text": FieldNames(text="storry"),
        "id": FieldNames(text="story", id="kei"),
        "title": FieldNames(text="story", title="heat"),
    }
    near = {"text": "story", "id": "key", "title": "head"}
    for role, fields in named.items():
        message = refusal(tmp_path / "c.jsonl", fields=fields)
        assert f"Unknown {role} field" in message
        assert f"did you mean {near[role]!r}?" in message


def test_damage_inside_parquet_rejects_the_rows_of_its_group(tmp_path: Path) -> None:
    path = tmp_path / "c.parquet"
    texts = [f"a longer text with the number {n}" for n in range(3000)]
    table = pa.table({"id": list(map(str, range(3000))), "text": texts})
    pq.write_table(table, path, row_group_size=1000, compression="zstd")
    place = pq.ParquetFile(path).metadata.row_group(1).column(1).data_page_offset
    data = bytearray(path.read_bytes())
    data[place + 20 : place + 200] = bytes(180)
    path.write_bytes(data)
    assert f"{path}:row group 2:row 1: damaged row group: " in refusal(path)
    documents, rejects, survey = read_all(path, batch_rows=512)
    assert (survey.rows, len(documents), len(rejects)) == (3000, 2000, 1000)
    assert rejects[-1].source == f"{path}:row group 2:row 1000"


@pytest.mark.parametrize(
    ("kind", "as_bytes"),
    [
        (pa.string(), pa.binary()),
        (pa.large_string(), pa.large_binary()),
        (pa.string_view(), pa.binary_view()),
    ],
)
def test_bad_values_inside_parquet_reject_their_row(
    tmp_path: Path, kind: pa.DataType, as_bytes: pa.DataType
) -> None:
    path = tmp_path / "c.parquet"
    bytes_of = pa.array([b"fine", b"caf\xe9", b"a\0b", None], as_bytes)
    columns = {
        "id": pa.array(["1", "2", "3", "4"]),
        "text": bytes_of.view(kind),
        "n": pa.array([float("inf"), 1.0, 1.0, 1.0]),
    }
    for path in (tmp_path / "c.parquet", tmp_path / "c.arrow"):
        if path.suffix == ".parquet":
            pq.write_table(pa.table(columns), path)
        else:
            with ipc.new_file(path, pa.table(columns).schema) as writer:
                writer.write_table(pa.table(columns))
        documents, rejects, _ = read_all(path)
        assert not documents
        assert [reject.reason for reject in rejects] == [
            "column 'n' has a value that is not finite",
            "invalid UTF-8 or a lone surrogate in 'text'",
            "NUL character in 'text'",
            "blank document: 'title' and 'text' are both blank",
        ]


@pytest.mark.parametrize("kind", [pa.float64(), pa.int64(), pa.list_(pa.string()), pa.bool_()])
def test_a_text_column_that_holds_no_text(tmp_path: Path, kind: pa.DataType) -> None:
    values = {"double": 1.5, "int64": 5, "bool": True}.get(str(kind), ["a"])
    table = pa.table({"text": pa.array([values], kind)})
    pq.write_table(table, tmp_path / "c.parquet")
    message = refusal(tmp_path / "c.parquet")
    assert "c.parquet:row group 1:row 1: 'text' is of type " in message
    assert "it must be a string" in message


def test_a_cut_arrow_file_keeps_what_stands_before_the_cut(tmp_path: Path) -> None:
    path = tmp_path / "c.arrow"
    table = pa.table({"id": list(map(str, range(4000))), "text": ["some text"] * 4000})
    with ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)
    path.write_bytes(path.read_bytes()[:-20_000])
    documents, rejects, _ = read_all(path, batch_rows=512)
    assert len(documents) == 3000
    assert [reject.source for reject in rejects] == [f"{path}:batch 3"]


def test_a_link_out_of_a_folder_is_a_bad_row_and_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "real.txt").write_text("text")
    (folder / "inside.txt").symlink_to("real.txt")
    (folder / "sub" / "outside.txt").symlink_to("../../secret.txt")
    documents, [reject], survey = read_all(folder)
    assert {doc.doc_id: doc.text for doc in documents} == {"inside.txt": "text", "real.txt": "text"}
    assert reject.source == f"{folder}/sub/outside.txt:1"
    assert "a link to a file outside the folder" in reject.reason
    (tmp_path / "secret.txt").write_text("another secret")
    assert read_all(folder)[2].sha256 == survey.sha256


@pytest.mark.parametrize("pattern", ["**/*.txt", "{}/**/*.txt", "{}/**/**/*.txt", "./a/**/*.txt"])
def test_a_deep_glob_does_not_follow_links_in_circles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a" / "b[1]").mkdir(parents=True)
    (tmp_path / "a" / ".hidden").mkdir()
    for name in ("a/x.txt", "a/b[1]/y.txt", "a/.hidden/z.txt"):
        (tmp_path / name).write_text("text")
    for name in ("one", "two", "three"):  # as links, 3**40 paths
        (tmp_path / "a" / name).symlink_to("../a")
    files = expand([pattern.format(tmp_path)])
    assert sorted(file.path.name for file in files) == ["x.txt", "y.txt"]


def test_a_deep_glob_finds_what_the_library_finds_where_there_are_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("1.txt", "a/2.txt", "a/b/3.txt", "a/b/a/4.txt", "c/b/5.txt", "a/b/6.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text")
    patterns = ["**/*.txt", "a/**/*.txt", "**/b/**/*.txt", "*/**/?.txt", "a/b/**/*.txt", "**/4.*"]
    for pattern in ("**", "a/**", "**/b/**", "**/*"):  # and not a second time as files of a folder
        names = glob.glob(f"{pattern}/*" if pattern[-2:] == "**" else pattern, recursive=True)
        wanted = sorted(name for name in names if Path(name).is_file())
        assert sorted(str(file.path) for file in expand([pattern])) == wanted
    for pattern in [*patterns, *(f"{tmp_path}/{pattern}" for pattern in patterns)]:
        found = sorted(str(file.path) for file in expand([pattern]))
        assert found == sorted(glob.glob(pattern, recursive=True))

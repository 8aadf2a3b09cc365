"""Readers of a batch: three formats, one stream of rows; places to begin again; rows that nobody meant."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranker.batch import rows as rows_module
from ranker.batch.folders import LocalFolder
from ranker.batch.plan import make_plan
from ranker.batch.rows import Columns, kind, read
from ranker.core.errors import InputError, PrerequisiteError, ResourceError

COLUMNS = Columns("id", "text")
TEXTS = [
    'He said "weld, or cut"', "two\nlines\r\nin one", "Überprüfung 溶接 🚀", " padded ", "50lbs; IDS/IPS\tC++", "\x07"
]  # fmt: skip


def rows_of(tmp_path, name: str, data: bytes, **place):
    (tmp_path / name).write_bytes(data)
    return list(read(LocalFolder(tmp_path), name, COLUMNS, **place))


def reasons(rows) -> list[tuple[int, str]]:
    return [(row.line, row.reason) for row in rows]


def as_jsonl(texts) -> bytes:
    return "".join(json.dumps({"id": i, "x": None, "text": text}) + "\n" for i, text in enumerate(texts)).encode()


def as_csv(texts, delimiter=",") -> bytes:
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, delimiter=delimiter)
    writer.writerows([("x", "text", "id"), *(("", text, i) for i, text in enumerate(texts))])
    return stream.getvalue().encode()


def as_parquet(texts) -> bytes:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    stream = io.BytesIO()
    table = pa.table({"x": [0.0] * len(texts), "text": list(texts), "id": range(len(texts))})
    pq.write_table(table, stream, row_group_size=2)
    return stream.getvalue()


FORMATS = {
    "a.jsonl": as_jsonl, "a.ndjson": as_jsonl, "a.csv": as_csv, "a.parquet": as_parquet,
    "a.jsonl.gz": lambda texts: gzip.compress(as_jsonl(texts)), "a.csv.gz": lambda texts: gzip.compress(as_csv(texts)),
    "b.csv": lambda texts: b"\xef\xbb\xbf" + as_csv(texts, ";"), "a.tsv": lambda texts: as_csv(texts, "\t"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_rows_and_can_be_begun_anywhere(tmp_path, name):
    rows = rows_of(tmp_path, name, FORMATS[name](TEXTS))
    assert [(row.id, row.text, row.reason) for row in rows] == [(str(i), text, "") for i, text in enumerate(TEXTS)]
    for i, row in enumerate(rows):
        again = list(read(LocalFolder(tmp_path), name, COLUMNS, offset=row.offset, line=row.line))
        assert again == rows[i:]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12), max_size=8))
def test_csv_that_python_writes_is_read_back(tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("csv")
    rows = rows_of(folder, "a.csv", as_csv(texts))
    assert [row.id for row in rows if not row.reason] == [str(i) for i, text in enumerate(texts) if text.strip()]
    for i, row in enumerate(rows):
        assert list(read(LocalFolder(folder), "a.csv", COLUMNS, offset=row.offset, line=row.line)) == rows[i:]


def test_bad_json_rows_have_reasons_and_lines(tmp_path):
    lines = [
        b'{"id": 1, "text": "weld"}', b"", b'{"id": 2, "text": we', b"[1]", b'{"id": 3}', b'{"id": 4, "text": null}',
        b'{"id": 5, "text": " \\t"}', b'{"id": 6, "text": 7}', b'{"id": null, "text": "a"}',
        b'{"id": 1.5, "text": "a"}', b'{"id": true, "text": "a"}', b'{"id": "\\ud800", "text": "a"}',
        b'{"id": 8, "text": "\xff"}', b"[" * 100_000, b'{"id": "9", "text": "half \\ud800 a pair"}',
    ]  # fmt: skip
    rows = rows_of(tmp_path, "a.jsonl", b"\n".join(lines))
    assert [row.id for row in rows if not row.reason] == ["1", "9"]
    found = dict(reasons(rows))
    assert 2 not in found  # a blank line is no row
    assert found[3].startswith("broken JSON: Expecting value")
    assert found[4] == "not a JSON object"
    assert found[5] == "no 'text'; the object has: id"
    assert found[6] == found[7] == "no text"
    assert found[8] == "the text is no string but int"
    assert found[9] == "no id"
    assert found[10] == "the id is no string or whole number but float"
    assert found[11] == "the id is no string or whole number but bool"
    assert found[12] == "the id is not valid Unicode"
    assert found[13].startswith("broken JSON: 'utf-8'")
    assert found[14].startswith("broken JSON: ")
    assert found[15] == ""


def test_bad_csv_rows_have_reasons_and_lines(tmp_path):
    data = b'id,text\n1,weld\n2\n3,a,b\n\n,paint\n4,\n5,\xff\n"6","two\nlines"\n'
    data += b"7," + b"x" * 1_100_000 + b'\n8,cut\n9,"a"b\n'
    assert reasons(rows_of(tmp_path, "a.csv", data)) == [
        (2, ""), (3, "1 fields, the header has 2"), (4, "3 fields, the header has 2"), (6, "no id"), (7, "no text"),
        (8, "not UTF-8"), (9, ""), (11, "broken CSV: the row is longer than 1048576 bytes"), (12, ""),
        (13, "broken CSV: ',' expected after '\"'"),
    ]  # fmt: skip


@pytest.mark.parametrize("n", [10, 120_000])
def test_a_quote_that_is_never_closed_costs_its_own_row_only(tmp_path, n):
    data = b'id,text\n1,"weld\n' + b"".join(b"%d,cut\n" % i for i in range(2, n))
    rows = rows_of(tmp_path, "a.csv", data)
    assert rows[0].reason.startswith("broken CSV")
    assert [row.id for row in rows[1:]] == [str(i) for i in range(2, n)]


def test_a_line_that_would_fill_the_memory_is_one_bad_row(tmp_path, monkeypatch):
    monkeypatch.setattr(rows_module, "MAX_ROW", 100)
    data = as_jsonl(["weld", "x" * 1000, "cut"])
    rows = rows_of(tmp_path, "a.jsonl", data)
    assert reasons(rows) == [(1, ""), (2, "the row is longer than 100 bytes"), (3, "")]
    assert rows_of(tmp_path, "a.jsonl", data, offset=rows[2].offset, line=3) == rows[2:]


def test_columns_are_looked_for_in_header_and_schema(tmp_path):
    with pytest.raises(InputError, match=r"a\.csv: no column 'id' and 'text'; there are: a, b; see --id-column"):
        rows_of(tmp_path, "a.csv", b"a,b\n1,2\n")
    parquet = as_parquet(["a"])
    (tmp_path / "a.parquet").write_bytes(parquet)
    with pytest.raises(InputError, match=r"a\.parquet: no column 'body'; there are: x, text, id"):
        list(read(LocalFolder(tmp_path), "a.parquet", Columns("id", "body")))
    swapped = list(read(LocalFolder(tmp_path), "a.parquet", Columns("text", "id")))
    assert swapped[0].reason == "the text is no string but int"


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.csv.gz", "a.parquet"])
def test_a_damaged_file_is_named(tmp_path, name):
    with pytest.raises(InputError, match=f"{name} cannot be read beyond line"):
        rows_of(tmp_path, name, FORMATS[name]([str(hash(str(i))) for i in range(2000)])[:-400])


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(PrerequisiteError, match=r"'\.\[scale\]'"):
        rows_of(tmp_path, "a.parquet", b"")


def test_kinds():
    names = ("a.JSONL.gz", "x/b.csv", "c.parquet.gz", "d.txt", "e")
    assert [kind(name) for name in names] == [".jsonl", ".csv", "", "", ""]


def test_a_plan_covers_every_row_once_and_knows_repeated_ids(tmp_path):
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "a.jsonl").write_bytes(as_jsonl(["a", "", "c", "d", "e"]))
    (tmp_path / "in" / "sub" / "b.csv").write_bytes(as_csv(["b"] * 3) + b"0,x\n,7,7\n,again,7\n")
    (tmp_path / "in" / "_about.jsonl").write_bytes(b"{}")
    (tmp_path / "in" / "readme.txt").write_bytes(b"-")
    plan = make_plan(str(tmp_path / "in"), COLUMNS, 2)
    assert [part.name for part in plan.parts] == [
        "part-00000-000000000-000000001", "part-00000-000000002-000000003", "part-00000-000000004-000000004",
        "part-00001-000000000-000000001", "part-00001-000000002-000000003", "part-00001-000000004-000000005",
    ]  # fmt: skip
    assert [part.repeats for part in plan.parts] == [(), (), (), (0,), (0,), (1,)]  # the empty text of id 1 took no id
    assert (plan.rows, plan.good) == (11, 4 + 1 + 1)
    assert make_plan(str(tmp_path / "in"), COLUMNS, 3).fingerprint == plan.fingerprint
    (tmp_path / "in" / "a.jsonl").write_bytes(as_jsonl(["a", "", "c", "D", "e"]))
    assert make_plan(str(tmp_path / "in"), COLUMNS, 2).fingerprint != plan.fingerprint


def test_input_that_nobody_can_tag_is_refused(tmp_path):
    with pytest.raises(ResourceError, match="no file or folder"):
        make_plan(str(tmp_path / "none"), COLUMNS, 2)
    with pytest.raises(InputError, match=r"no file of a kind that can be read: \.jsonl"):
        make_plan(str(tmp_path), COLUMNS, 2)
    (tmp_path / "a.jsonl").write_bytes(b'x\n{"id": 1, "body": "weld"}\n')
    with pytest.raises(InputError, match=r"not one row can be tagged; a\.jsonl line 1: broken JSON.*--text-column"):
        make_plan(str(tmp_path), COLUMNS, 2)
    (tmp_path / "a.jsonl").write_bytes(b"")
    assert make_plan(str(tmp_path), COLUMNS, 2).parts == ()

"""Files of an SFTP server as source and target."""

from __future__ import annotations

import itertools
import json
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noetl.testing import SourceConformance, TargetConformance, run_tool

# asyncssh does not close a local file if a download is cancelled while it ends; the interpreter does.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
numbers = itertools.count()
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("price", pa.float64()), ("note", pa.string())])


class TestParquetSource(SourceConformance):
    @pytest.fixture
    def place(self, server):
        def store(rows):
            name = f"source{next(numbers)}.parquet"
            pq.write_table(pa.Table.from_pylist(rows, SCHEMA), server.folder / name)
            return {"kind": "sftp", "auth": server.auth, "path": f"/{name}"}

        return store

    @pytest.fixture
    def missing(self, server):
        return lambda: {"kind": "sftp", "auth": server.auth, "path": "/none.parquet"}

    def test_a_batch_is_bounded(self):
        pytest.skip("batches are those of the file's row groups, read by DuckDB")


class TestParquetTarget(TargetConformance):
    modes = ("replace",)

    @pytest.fixture
    def place(self, server):
        return lambda: {"kind": "sftp", "auth": server.auth, "path": f"/out/t{next(numbers)}.parquet"}

    @pytest.fixture
    def read(self, server):
        return lambda fields: pq.read_table(server.folder / fields["path"].lstrip("/")).to_pylist()


def transfer(source, target, **others):
    return run_tool("transfer", {"source": source, "targets": [target], **others})


@pytest.mark.parametrize("format", ["csv", "jsonl", "json"])
def test_text_formats_go_there_and_back(server, tmp_path, format):
    rows = [{"id": 1, "name": "ü,\n"}, {"id": 2, "name": "b"}]
    place = {"kind": "sftp", "auth": server.auth, "path": f"/x.{format}"}
    assert transfer(rows, place).error is None
    assert transfer(place, {"kind": "file", "path": str(tmp_path / "x.parquet")}).error is None
    assert pq.read_table(tmp_path / "x.parquet").to_pylist() == rows


def test_several_files_are_one_source(server, tmp_path):
    (server.folder / "a-1.csv").write_text("id,v\n1,2\n")
    (server.folder / "a-2.csv").write_text("id,v\n2,2.5\n")
    place = {"kind": "sftp", "auth": server.auth, "path": "/a-*.csv"}
    assert transfer(place, {"kind": "file", "path": str(tmp_path / "x.parquet")}).error is None
    assert pq.read_table(tmp_path / "x.parquet").to_pylist() == [{"id": 1, "v": 2.0}, {"id": 2, "v": 2.5}]
    missing = transfer({**place, "path": "/b-*.csv"}, {"kind": "file", "path": str(tmp_path / "y.csv")})
    assert (missing.error.kind, "/b-*.csv" in missing.error.message) == ("not_found", True)


def test_chunks_of_any_size_give_the_same_file(server):
    rows = [{"id": n} for n in range(5)]
    for size in (2, 5):
        assert (
            transfer(rows, {"kind": "sftp", "auth": server.auth, "path": f"/c{size}.csv"}, chunk={"size": size}).error
            is None
        )
    assert (server.folder / "c2.csv").read_text() == (server.folder / "c5.csv").read_text()


def test_a_failed_transfer_leaves_no_partial_file(server):
    good = {"kind": "sftp", "auth": server.auth, "path": "/out/x.csv"}
    bad = {"kind": "sftp", "auth": {**server.auth, "password": "wrong"}, "path": "/out/y.csv"}
    outcome = run_tool("transfer", {"data": [{"id": 1}], "targets": [good, bad]})
    assert outcome.error.kind == "auth"
    assert list((server.folder / "out").iterdir()) == []


def test_an_error_of_a_file_names_the_file_of_the_server(server, host):
    (server.folder / "bad.json").write_text("{nope")
    source = {"kind": "sftp", "auth": "partner", "path": "/bad.json"}
    outcome = run_tool("transfer", {"source": source, "targets": [{"kind": "file", "path": "out.csv"}]}, host=host)
    assert '"/bad.json"' in outcome.error.message
    assert "noetl-sftp" not in outcome.error.message


def test_transfers_to_one_file_do_not_share_the_file_that_they_write(server):
    """Each writes a whole file; the last one that ends has the name."""
    target = {"kind": "sftp", "auth": server.auth, "path": "/same.csv"}

    def write(letter: str):
        given = {"data": [{"c": letter * 50}] * 2_000, "targets": [target], "chunk": {"size": 100}}
        return run_tool("transfer", given, execution_id=str(ord(letter)))

    with ThreadPoolExecutor(3) as pool:
        assert [outcome.error for outcome in pool.map(write, "abc")] == [None] * 3
    _, *lines = (server.folder / "same.csv").read_text().splitlines()
    assert (len(lines), len(set(lines)), [each.name for each in server.folder.iterdir()]) == (2_000, 1, ["same.csv"])


@pytest.mark.parametrize("ending", ["csv.gz", "csv.bz2", "jsonl.xz", "jsonl.zst", "json.gz", "tsv", "tsv.gz"])
def test_compressed_files_are_written_and_read(server, tmp_path, ending):
    rows = [{"id": number, "name": f"ü {number}"} for number in range(2_000)]
    for number in range(2):
        place = {"kind": "sftp", "auth": server.auth, "path": f"/x{number}.{ending}"}
        assert transfer(rows[number * 1000 : number * 1000 + 1000], place).error is None
    stored = (server.folder / f"x0.{ending}").read_bytes()
    assert len(stored) < 10_000 or ending == "tsv"
    assert ending != "tsv" or stored.startswith(b"id\tname")
    assert (
        transfer({**place, "path": f"/x*.{ending}"}, {"kind": "file", "path": str(tmp_path / "x.json")}).error is None
    )
    assert json.loads((tmp_path / "x.json").read_text()) == rows


def test_a_file_that_is_not_what_its_name_says_is_an_error(server, tmp_path):
    (server.folder / "x.csv.gz").write_text("id\n1\n")
    (server.folder / "x.csv.zip").write_text("id\n1\n")
    for name, said in (
        ("x.csv.gz", "/x.csv.gz: the content is not valid gzip"),
        ("x.csv.zip", ".zip is not supported"),
    ):
        place = {"kind": "sftp", "auth": server.auth, "path": f"/{name}", "format": "csv"}
        outcome = transfer(place, {"kind": "file", "path": str(tmp_path / "x.csv")})
        assert outcome.error.kind == "schema"
        assert said in outcome.error.message
    outcome = transfer([{"id": 1}], {"kind": "sftp", "auth": server.auth, "path": "/y.parquet.gz"})
    assert (outcome.error.kind, "compressed inside the file" in outcome.error.message) == ("schema", True)
    assert not (server.folder / "y.parquet.gz").exists()

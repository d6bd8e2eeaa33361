"""Class "archives": backups and bundles write nothing outside of their folders, and damaged ones change nothing."""

from __future__ import annotations

import asyncio
import hashlib
import json
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import asyncpg
import msgspec
import pytest

from devcluster.services import fresh_database
from noetl.cli import app
from noetl.core.model.bundle import Bundle, file_and_folder, file_digest, is_inner_path
from noetl.errors import CorruptLog, RequestRefused
from noetl.server.orchestrator.bundles import Bundles
from noetl.storage.playbooks.memory import MemoryPlaybookStore
from noetl.worker.bundles import BundleFolders

PLAYBOOK = (
    "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\nworkflow: [{step: start, tool: {kind: noop}}]\n"
)
OUTER = [
    "../x",
    "/x",
    "a/../../x",
    "a/../x",
    "./x",
    "a//x",
    "a/",
    "",
    ".",
    "..",
    "a\\..\\x",
    "C:\\x",
    "a\0b",
    "a\nb",
    "\x1b[2J",
]
OUTER += ["a\u202eb", "a\u2028b", "x" * 256, "\u00e9" * 128, "a/" * 600 + "b", "..\\x", "a/..", "a/.", "\x7f", "\ud800"]


@pytest.fixture(scope="module")
def backup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("backup")
    (folder / "p.yaml").write_text(PLAYBOOK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NOETL_HOME", str(folder / "home"))
        assert noetl("run", str(folder / "p.yaml"), "-q") == 0
        assert noetl("backup", str(folder / "all.backup")) == 0
    return folder / "all.backup"


def noetl(*words: str) -> int:
    return app.run(list(words))


def changed(backup: Path, target: Path, added: dict[str, bytes], **fields: object) -> Path:
    """A backup with more entries and other fields of its manifest, whose checksums are right."""
    with zipfile.ZipFile(backup) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as out:
        entries = {name: source.read(name) for name in source.namelist() if name != "manifest.json"}
        manifest = json.loads(source.read("manifest.json")) | fields
        for name, content in {**entries, **added}.items():
            out.writestr(name, content)
            manifest["entries"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        out.writestr("manifest.json", json.dumps(manifest))
    return target


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Restores a file and requires an error in one line, and that nothing was written."""

    def restore(file: Path, code: int = 2) -> str:
        monkeypatch.setenv("NOETL_HOME", str(tmp_path / "home"))
        assert noetl("restore", str(file)) == code
        error = capsys.readouterr().err
        assert "internal error" not in error and "Traceback" not in error
        assert not (tmp_path / "home/noetl.db").exists()
        assert {each.name for each in tmp_path.iterdir()} <= {"home", file.name}
        return error

    return restore


HOME = [
    "admin.token",
    "settings.toml",
    "noetl.db",
    "credentials.db",
    "bundles/x/p.yaml",
    "tokens.json/x",
    "../x",
    "/x",
    "",
]
NAMES = [f"home/{name}" for name in HOME] + ["other", "tables/noetl_events", "../x", "/x", "noetl.db-wal", "results"]
NAMES += [f"results/{name}" for name in OUTER if "\0" not in name and "\ud800" not in name]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_entries_that_no_backup_has_are_not_restored(backup, refused, tmp_path, name):
    assert "no backup has" in refused(changed(backup, tmp_path / "x.backup", {name: b"x"}))


def test_a_file_that_is_a_folder_too_is_not_restored(backup, refused, tmp_path):
    assert "as a folder" in refused(changed(backup, tmp_path / "x.backup", {"results/a": b"x", "results/a/b": b"x"}))


@pytest.mark.parametrize("versions", [{"unknown": 0}, {"unknown": 1}, {"events": -1}, {"events": 10_000}], ids=str)
def test_unknown_versions_are_not_restored(backup, refused, tmp_path, versions):
    refused(changed(backup, tmp_path / "x.backup", {}, versions=versions))


@pytest.mark.parametrize("entry", ["manifest.json", "noetl.db"])
@pytest.mark.parametrize(("at", "value"), [(8, 1), (10, 97), (10, 14), (10, 12), (10, 93)], ids=str)
def test_encrypted_and_unknown_compression_is_damage(backup, refused, tmp_path, entry, at, value):
    """Flags and compression method, in the directory of the archive and before the entry."""
    content = bytearray(backup.read_bytes())
    name = entry.encode()
    place = content.rindex(name)  # in the directory
    content[place - 46 + at] = value
    (local,) = struct.unpack_from("<I", content, place - 46 + 42)
    content[local + at - 2] = value
    (tmp_path / "x.backup").write_bytes(content)
    refused(tmp_path / "x.backup")


def test_a_manifest_without_end_is_not_read(backup, refused, tmp_path):
    with zipfile.ZipFile(tmp_path / "x.backup", "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("manifest.json", b" " * (20 << 20))
    assert "more than 16 MB" in refused(tmp_path / "x.backup")


def test_entries_larger_than_the_manifest_says_are_not_read_to_their_end(backup, refused, tmp_path):
    with zipfile.ZipFile(backup) as source, zipfile.ZipFile(tmp_path / "x.backup", "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("noetl.db", bytes(64 << 20))
        out.writestr("manifest.json", source.read("manifest.json"))
    assert "is damaged" in refused(tmp_path / "x.backup")


@pytest.fixture
def database(postgres) -> Iterator[str]:
    with fresh_database(postgres) as url:
        yield url


@pytest.mark.parametrize(
    "table", ['noetl_events"; CREATE TABLE stolen (x int); --', "noetl_nothing", "pg_authid", "noetl_servers"]
)
def test_tables_of_a_backup_are_those_of_noetl(tmp_path, monkeypatch, database, table):
    monkeypatch.setenv("NOETL_HOME", str(tmp_path / "home"))
    file = tmp_path / "x.backup"
    empty = b"PGCOPY\n\xff\r\n\0" + bytes(8) + b"\xff\xff"
    manifest = {"kind": "postgres", "noetl": "0", "created_at": "", "versions": {"events": 1}}
    manifest["entries"] = {f"tables/{table}": {"bytes": len(empty), "sha256": hashlib.sha256(empty).hexdigest()}}
    manifest["tables"] = [{"name": table, "columns": ["x"], "rows": 0}]
    with zipfile.ZipFile(file, "w") as out:
        out.writestr(f"tables/{table}", empty)
        out.writestr("manifest.json", json.dumps(manifest))
    assert noetl("restore", str(file), "--store", database) == 2

    async def tables() -> list[str]:
        connection = await asyncpg.connect(database)
        try:
            return [row[0] for row in await connection.fetch("SELECT tablename FROM pg_tables")]
        finally:
            await connection.close()

    assert "stolen" not in asyncio.run(tables())


@pytest.mark.parametrize("path", OUTER, ids=ascii)
def test_paths_that_leave_a_bundle_are_refused_by_server_and_worker(path, tmp_path):
    assert not is_inner_path(path)
    bundle = Bundle({path: file_digest(b"x"), "p.yaml": file_digest(b"x")})
    with pytest.raises(RequestRefused, match="not a path inside a bundle"):
        asyncio.run(Bundles(MemoryPlaybookStore()).add(bundle))
    if path.isprintable():
        with pytest.raises(CorruptLog):
            copied(bundle, tmp_path)
        assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize("path", ["a", "a/b.sql", ".env", "\u00e9/\u65e5\u672c.csv", "a b", "...", "x" * 255])
def test_other_paths_are_accepted(path):
    assert is_inner_path(path)
    assert file_and_folder([path, "other/b"]) is None


def test_a_file_and_a_folder_of_one_name_are_refused():
    digest = file_digest(b"x")
    with pytest.raises(RequestRefused, match="a file and a folder"):
        asyncio.run(Bundles(MemoryPlaybookStore()).add(Bundle({"a/b": digest, "a/b/c/d": digest})))


def copied(bundle: Bundle, home: Path | None) -> str:
    folders = BundleFolders(home)

    async def content(_: str) -> bytes:
        return b"x"

    async def document(_: str) -> bytes:
        return msgspec.json.encode(bundle)

    file = f"bundle:{bundle.digest}/p.yaml"
    link = SimpleNamespace(bundle=document, bundle_file=content)
    asyncio.run(folders.prepare(link, file))  # type: ignore[arg-type]
    return folders.local_file(file)


def test_copies_without_a_home_are_in_a_folder_that_no_other_user_can_create_first(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    bundle = Bundle({"p.yaml": file_digest(b"x")})
    first, second = copied(bundle, None), copied(bundle, None)
    assert first != second
    assert Path(first).parents[1].stat().st_mode & 0o077 == 0

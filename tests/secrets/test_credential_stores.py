"""Every credential store fulfils the contract of the port; behaviour of clusters."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from noetl.core.model.playbook import KeychainEntry
from noetl.errors import RequestRefused, SecretUnavailable
from noetl.secrets.credentials.store import SqlCredentialStore
from noetl.secrets.keychain import InstallationKeychain, InstalledCredentials, only_inside
from noetl.secrets.master_key import KeyRing
from noetl.storage.postgres.database import PostgresDatabase
from noetl.storage.sqlite.database_file import SqliteFile
from tests.conformance.credential_store import CredentialStoreSuite


class SqlSuite(CredentialStoreSuite):
    async def let_go(self, store: Any) -> None:
        await store._database.close()


class TestSqlite(SqlSuite):
    async def open_store(self, place: Path, ring: KeyRing | Callable[[], KeyRing]) -> Any:
        return SqlCredentialStore(SqliteFile(str(place / "noetl.db")), ring)

    async def column(self, place: Path, name: str, column: str) -> bytes:
        with closing(sqlite3.connect(place / "noetl.db")) as db:
            return db.execute(f"SELECT {column} FROM credentials WHERE name = ?", (name,)).fetchone()[0]

    async def overwrite(self, place: Path, name: str, column: str, value: bytes) -> None:
        with closing(sqlite3.connect(place / "noetl.db")) as db, db:
            db.execute(f"UPDATE credentials SET {column} = ? WHERE name = ?", (value, name))


class TestPostgres(SqlSuite):
    @pytest.fixture(autouse=True)
    def _fresh(self, database: str) -> None:
        self.dsn = database

    async def open_store(self, place: Path, ring: KeyRing | Callable[[], KeyRing]) -> Any:
        return SqlCredentialStore(PostgresDatabase(self.dsn), ring)

    async def column(self, place: Path, name: str, column: str) -> bytes:
        with psycopg.connect(self.dsn) as db:
            found = db.execute(f"SELECT {column} FROM noetl_credentials WHERE name = %s", (name,)).fetchone()  # type: ignore[arg-type]
            assert found is not None
            return bytes(found[0])

    async def overwrite(self, place: Path, name: str, column: str, value: bytes) -> None:
        with psycopg.connect(self.dsn) as db:
            db.execute(f"UPDATE noetl_credentials SET {column} = %b WHERE name = %s", (value, name))  # type: ignore[arg-type]


def with_installation(home: Path, dsn: str, work: Callable[[InstalledCredentials], Any], **environment: str) -> Any:
    async def run() -> Any:
        database = PostgresDatabase(dsn)
        try:
            return await work(InstalledCredentials(home, environment, database))
        finally:
            await database.close()

    return asyncio.run(run())


def test_credentials_of_a_file_are_copied_to_the_database_once(tmp_path: Path, database: str):
    async def fill() -> None:
        credentials = InstalledCredentials(tmp_path, {})
        await credentials.set("pg", "postgres", {"password": "from the file"})
        await credentials.close()

    asyncio.run(fill())
    assert with_installation(tmp_path, database, lambda each: each.list()) == [("pg", "postgres")]
    assert with_installation(tmp_path, database, lambda each: each.get("pg")) == {"password": "from the file"}
    assert not (tmp_path / "credentials.db").exists()
    assert with_installation(tmp_path, database, lambda each: each.delete("pg")) is True
    assert with_installation(tmp_path, database, lambda each: each.list()) == []


def test_a_master_key_in_a_file_is_not_rotated_while_several_servers_run(tmp_path: Path, database: str):
    from noetl.storage.cluster.postgres import PostgresCluster

    async def work(credentials: InstalledCredentials) -> None:
        await credentials.set("x", "t", {"a": 1})
        assert await credentials.rotate() == 1, "one server alone replaces its key file"
        others = PostgresDatabase(database)
        for name in ("a", "b"):
            await PostgresCluster(others, name).join()
        with pytest.raises(RequestRefused, match="NOETL_SECRET_KEY=new,old"):
            await credentials.rotate()
        assert await credentials.get("x") == {"a": 1}
        await others.close()

    with_installation(tmp_path, database, work)


def test_servers_with_keys_in_the_environment_rotate_together(tmp_path: Path, database: str):
    old, new = "ab" * 32, "cd" * 32
    first, second = tmp_path / "1", tmp_path / "2"
    with_installation(first, database, lambda each: each.set("x", "t", {"a": 1}), NOETL_SECRET_KEY=old)
    both = f"{new},{old}"
    assert with_installation(second, database, lambda each: each.get("x"), NOETL_SECRET_KEY=both) == {"a": 1}
    assert with_installation(first, database, lambda each: each.rotate(), NOETL_SECRET_KEY=both) == 1
    assert with_installation(second, database, lambda each: each.get("x"), NOETL_SECRET_KEY=new) == {"a": 1}
    with pytest.raises(SecretUnavailable, match="with the master key"):
        with_installation(second, database, lambda each: each.get("x"), NOETL_SECRET_KEY=old)


def test_files_in_the_home_of_a_server_are_not_readable_as_secrets(tmp_path: Path):
    home = tmp_path / "home"
    home.mkdir()
    (home / "admin.token").write_text("noetl_admin")
    (tmp_path / "elsewhere").write_text("fine")
    (tmp_path / "link").symlink_to(home / "admin.token")
    chain = InstallationKeychain(environment={}, allows_file=only_inside([str(tmp_path)], home))

    async def ask(path: Path) -> Any:
        return await chain.resolve([KeychainEntry(name="k", kind="file", fields={"path": str(path)})], ["k"])

    assert asyncio.run(ask(tmp_path / "elsewhere")) == {"k": "fine"}
    for path in (home / "admin.token", tmp_path / "link", home / ".." / "home" / "admin.token"):
        with pytest.raises(SecretUnavailable):
            asyncio.run(ask(path))

"""The encrypted credential store: no plain text on disk, key rotation, detection of damage and wrong keys."""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
import stat

import pytest

from noetl.errors import RequestRefused
from noetl.secrets.credentials.store import SqlCredentialStore
from noetl.secrets.keychain import InstallationKeychain, InstalledCredentials
from noetl.secrets.master_key import add_key, open_ring, remove_old_keys
from noetl.storage.sqlite.database_file import SqliteFile

CANARY = "canary-5f2b1c-secret"


def with_store(tmp_path, work, ring=None):
    async def run():
        file = SqliteFile(str(tmp_path / "noetl.db"))
        store = SqlCredentialStore(file, ring or (lambda: open_ring(tmp_path, {})))
        try:
            return await work(store)
        finally:
            await file.close()

    return asyncio.run(run())


def test_no_plain_text_is_on_disk(tmp_path):
    async def work(store):
        await store.set("pg", "postgres", {"password": CANARY})
        needles = (CANARY.encode(), base64.b64encode(CANARY.encode()), CANARY.encode().hex().encode())
        for path in tmp_path.iterdir():
            content = path.read_bytes()
            assert not any(needle in content for needle in needles), path

    with_store(tmp_path, work)


def test_the_master_key_is_rotated_without_loss(tmp_path):
    async def work(store):
        for number in range(20):
            await store.set(f"c{number}", "t", {"v": number})
        before = (tmp_path / "master.key").read_text().split()
        ring = add_key(tmp_path, {})
        assert len((tmp_path / "master.key").read_text().split()) == 2  # a crash here loses nothing
        assert await store.rewrap(ring) == 20
        remove_old_keys(tmp_path, {})
        after = (tmp_path / "master.key").read_text().split()
        assert len(after) == 1 and after != before
        await store.set("new", "t", {"v": "n"})

    with_store(tmp_path, work)

    async def later(store):
        assert [await store.get(f"c{n}") for n in range(20)] == [{"v": n} for n in range(20)]
        assert await store.get("new") == {"v": "n"}
        return await store.rewrap(open_ring(tmp_path, {}))

    assert with_store(tmp_path, later) == 0


def test_the_key_file_is_created_once_and_readable_by_its_owner_only(tmp_path):
    home = tmp_path / "home"
    first, second = open_ring(home, {}), open_ring(home, {})
    assert first.current == second.current
    assert stat.S_IMODE(os.stat(home / "master.key").st_mode) == 0o600
    os.chmod(home / "master.key", 0o644)
    with pytest.raises(RequestRefused, match="chmod 600"):
        open_ring(home, {})


def test_an_empty_or_broken_key_file_is_not_replaced(tmp_path):
    path = tmp_path / "master.key"
    path.touch(0o600)
    with pytest.raises(RequestRefused, match="is empty"):
        open_ring(tmp_path, {})
    path.write_text("short")
    with pytest.raises(RequestRefused, match="32 bytes"):
        open_ring(tmp_path, {})


def test_keys_come_from_the_environment_in_several_spellings(tmp_path):
    raw = secrets.token_bytes(32)
    spellings = [raw.hex(), base64.b64encode(raw).decode(), base64.urlsafe_b64encode(raw).decode().rstrip("=")]
    assert len({open_ring(tmp_path, {"NOETL_SECRET_KEY": text}).current for text in spellings}) == 1
    phrase = {"NOETL_SECRET_KEY": "a long enough passphrase"}
    assert open_ring(tmp_path, phrase).current == open_ring(tmp_path, phrase).current
    assert not list(tmp_path.iterdir())
    with pytest.raises(RequestRefused, match="16 characters"):
        open_ring(tmp_path, {"NOETL_SECRET_KEY": "short"})


def test_rotation_by_the_environment_reads_old_and_writes_new(tmp_path):
    old, new = secrets.token_hex(32), secrets.token_hex(32)

    async def fill(store):
        await store.set("x", "t", {"v": 1})

    with_store(tmp_path, fill, open_ring(tmp_path, {"NOETL_SECRET_KEY": old}))
    both = open_ring(tmp_path, {"NOETL_SECRET_KEY": f"{new},{old}"})
    assert with_store(tmp_path, lambda store: store.rewrap(both), both) == 1
    only_new = open_ring(tmp_path, {"NOETL_SECRET_KEY": new})
    assert with_store(tmp_path, lambda store: store.get("x"), only_new) == {"v": 1}
    with pytest.raises(RequestRefused, match="NOETL_SECRET_KEY"):
        add_key(tmp_path, {"NOETL_SECRET_KEY": new})


# ── as an installation has it ───────────────────────────────────────────────────────────


def installed(tmp_path, work, environment=None):
    async def run():
        chain = InstallationKeychain(InstalledCredentials(tmp_path, environment or {}), environment=environment or {})
        try:
            return await work(chain)
        finally:
            await chain.close()

    return asyncio.run(run())


def test_reading_credentials_creates_no_file(tmp_path):
    async def work(chain):
        assert await chain.credentials.get("x") is None
        assert await chain.credentials.list() == []
        assert await chain.credentials.delete("x") is False

    installed(tmp_path, work)
    assert not list(tmp_path.iterdir())


def test_an_installation_stores_credentials_and_rotates_its_key(tmp_path):
    async def work(chain):
        await chain.credentials.set("pg", "postgres", {"password": CANARY})
        before = (tmp_path / "master.key").read_text()
        assert await chain.credentials.rotate() == 1
        assert (tmp_path / "master.key").read_text() != before
        return await chain.resolve([], ["pg"])

    assert installed(tmp_path, work) == {"pg": {"password": CANARY}}
    assert installed(tmp_path, lambda chain: chain.credentials.list()) == [("pg", "postgres")]


def test_an_installation_whose_key_is_in_the_environment_rotates_by_it(tmp_path):
    old, new = secrets.token_hex(32), secrets.token_hex(32)
    installed(tmp_path, lambda chain: chain.credentials.set("x", "t", {"a": "b"}), {"NOETL_SECRET_KEY": old})
    both = {"NOETL_SECRET_KEY": f"{new},{old}"}
    assert installed(tmp_path, lambda chain: chain.credentials.rotate(), both) == 1
    assert installed(tmp_path, lambda chain: chain.credentials.get("x"), {"NOETL_SECRET_KEY": new}) == {"a": "b"}
    assert not (tmp_path / "master.key").exists()

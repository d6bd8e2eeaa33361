"""The catalog, on every back end."""

import asyncio

import pytest

from noetl.core.model.bundle import Bundle, Profile, file_digest
from noetl.storage.playbooks.memory import MemoryPlaybookStore
from noetl.storage.playbooks.sql import SqlPlaybookStore
from noetl.storage.ports.playbooks import Origin, StoredPlaybook
from noetl.storage.postgres.database import PostgresDatabase
from noetl.storage.sqlite.database_file import SqliteFile


@pytest.fixture(params=["sqlite", "memory", "postgres"])
def in_store(request, tmp_path):
    def run(scenario):
        async def whole():
            if request.param == "memory":
                await scenario(MemoryPlaybookStore())
                return
            if request.param == "postgres":
                database = PostgresDatabase(request.getfixturevalue("database"))
                await scenario(SqlPlaybookStore(database))
                await database.close()
                return
            file = SqliteFile(str(tmp_path / "noetl.db"))
            await scenario(SqlPlaybookStore(file))
            await file.close()

        asyncio.run(whole())

    return run


def version(path: str, digest: str, text: str, at: float) -> StoredPlaybook:
    return StoredPlaybook(path, 0, digest, text, at)


def test_texts_are_stored_by_digest(in_store):
    async def scenario(store):
        await store.save_text("d1", "text one", "/a/one.yaml")
        await store.save_text("d1", "text one", "/elsewhere.yaml")
        assert await store.text("d1") == ("text one", "/a/one.yaml")
        assert await store.text("d2") is None

    in_store(scenario)


def test_texts_without_a_version_are_deleted_when_they_were_not_used(in_store):
    async def scenario(store):
        await store.register(version("shop/a", "d1", "text 1", 10.0))
        await store.save_text("d2", "text 2", "")
        await store.save_text("d3", "text 3", "")
        assert list(await store.unregistered_texts(3600, 10)) == []
        assert await store.delete_texts(["d1", "d2", "d3"], 3600) == 0
        assert sorted(await store.unregistered_texts(0, 10)) == ["d2", "d3"]
        assert len(await store.unregistered_texts(0, 1)) == 1
        await store.keep_texts(["d2"])
        assert await store.delete_texts(["d3", "unknown"], 0) == 1
        assert [await store.text(each) for each in ("d1", "d2", "d3")] == [("text 1", ""), ("text 2", ""), None]
        await store.save_text("d3", "text 3", "")
        assert await store.text("d3") == ("text 3", "")

    in_store(scenario)


def test_a_new_text_is_a_new_version_and_the_same_text_is_not(in_store):
    async def scenario(store):
        assert (await store.register(version("shop/a", "d1", "one", 1.0))).version == 1
        assert (await store.register(version("shop/a", "d1", "one", 2.0))).version == 1
        assert (await store.register(version("shop/a", "d2", "two", 3.0))).version == 2
        assert (await store.register(version("shop/a", "d1", "one", 4.0))).version == 3
        assert (await store.find("shop/a")).text == "one"
        assert (await store.find("shop/a", 2)).digest == "d2"
        assert await store.find("shop/a", 9) is None
        assert await store.find("shop/b") is None
        assert await store.text("d2") == ("two", "")

    in_store(scenario)


def test_the_newest_version_of_each_path_is_listed_by_page(in_store):
    async def scenario(store):
        for n in range(5):
            await store.register(version(f"shop/p_{n}", f"d{n}", "old", 1.0))
            await store.register(version(f"shop/p_{n}", f"e{n}", "new", 2.0))
        assert [(row.path, row.version) for row in await store.list(limit=2)] == [("shop/p_0", 2), ("shop/p_1", 2)]
        assert [row.path for row in await store.list(after="shop/p_1", limit=2)] == ["shop/p_2", "shop/p_3"]
        assert [row.path for row in await store.list(search="P_3")] == ["shop/p_3"]
        assert await store.list(search="p%3") == []

    in_store(scenario)


def test_versions_are_listed_newest_first_by_page(in_store):
    async def scenario(store):
        for n in range(1, 6):
            await store.register(version("shop/a", f"d{n}", f"text {n}", float(n)))
        await store.register(version("shop/b", "d1", "other", 9.0))
        assert [row.version for row in await store.versions("shop/a", limit=2)] == [5, 4]
        assert [row.version for row in await store.versions("shop/a", before=4, limit=2)] == [3, 2]
        assert [row.text for row in await store.versions("shop/a", before=2)] == ["text 1"]
        assert list(await store.versions("shop/c")) == []

    in_store(scenario)


def test_a_version_has_its_file_and_origin(in_store):
    async def scenario(store):
        origin = Origin(project="shop", profile="prod", commit="abc", modified=True)
        await store.register(StoredPlaybook("shop/a", 0, "d1", "one", 1.0, "bundle:b/a.yaml", origin))
        found = await store.find("shop/a")
        assert (found.file, found.origin) == ("bundle:b/a.yaml", origin)
        assert await store.text("d1") == ("one", "bundle:b/a.yaml")

    in_store(scenario)


def test_bundles_and_files_are_stored_by_digest(in_store):
    async def scenario(store):
        bundle = Bundle({"a.yaml": file_digest(b"1"), "b.sql": file_digest(b"2")}, Profile({"x": 1}, {"c": "d"}))
        assert await store.bundle(bundle.digest) is None
        await store.save_bundle(bundle)
        await store.save_bundle(bundle)
        assert await store.bundle(bundle.digest) == bundle
        assert await store.absent_files(list(bundle.files.values())) == list(bundle.files.values())
        await store.save_files({file_digest(b"1"): b"1"})
        assert await store.absent_files(list(bundle.files.values())) == [file_digest(b"2")]
        assert await store.file(file_digest(b"1")) == b"1"
        assert await store.file(file_digest(b"2")) is None

    in_store(scenario)


def test_bundles_without_a_version_and_files_without_a_bundle_are_deleted(in_store):
    async def scenario(store):
        shared, own, lonely = (file_digest(each) for each in (b"shared", b"own", b"lonely"))
        registered = Bundle({"a.yaml": shared})
        sent = Bundle({"a.yaml": shared, "b.sql": own})
        await store.save_files({shared: b"shared", own: b"own", lonely: b"lonely"})
        for bundle in (registered, sent):
            await store.save_bundle(bundle)
        await store.register(StoredPlaybook("shop/a", 0, "d1", "one", 1.0, f"bundle:{registered.digest}/a.yaml"))
        await store.save_text("d2", "two", f"bundle:{sent.digest}/a.yaml")
        assert list(await store.unregistered_bundles(3600, 10)) == []
        assert await store.delete_bundles([registered.digest, sent.digest], 3600) == 0
        ((found, texts),) = await store.unregistered_bundles(0, 10)
        assert (found, list(texts)) == (sent.digest, ["d2"])
        assert await store.delete_bundles([found], 0) == 3
        assert await store.bundle(sent.digest) is None
        assert await store.bundle(registered.digest) == registered
        assert await store.absent_files([shared, own, lonely]) == [own, lonely]
        await store.save_bundle(sent)
        await store.save_files({own: b"own"})
        assert await store.bundle(sent.digest) == sent and await store.file(own) == b"own"

    in_store(scenario)

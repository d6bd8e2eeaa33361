"""The catalog: what it finds, caches, stores and refuses; lookups are shared and never older than the call."""

from __future__ import annotations

import asyncio
import os
import threading

import msgspec
import pytest

from noetl.core.language.compile import Compilation
from noetl.core.model.bundle import Bundle, Profile, bundle_file, file_digest
from noetl.core.model.playbook import Playbook
from noetl.errors import CorruptLog, InvalidPlaybook, NotFound
from noetl.server.orchestrator import catalog as module
from noetl.server.orchestrator.catalog import (
    MAX_COMPILE_THREADS,
    MAX_INLINE_CHARACTERS,
    Catalog,
    Source,
    source_digest,
)
from noetl.server.orchestrator.submissions import Submission
from noetl.storage.playbooks.memory import MemoryPlaybookStore
from noetl.storage.ports.playbooks import Origin, StoredPlaybook
from noetl.tools.registry import specs
from tests.server.conftest import make_orchestrator

TEXT = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p, path: team/p}
workload: {n: 1}
workflow: [{step: a, tool: {kind: noop}}]
"""


class Slow:
    """A store of playbooks that answers when the test permits it, with its content at the start of the read."""

    def __init__(self) -> None:
        self.version = 1
        self.looks: list[asyncio.Future[None]] = []

    async def find(self, path: str, version: int | None = None) -> StoredPlaybook | None:
        found = StoredPlaybook(path, self.version, source_digest(Source("", "")), text="", registered_at=0.0)
        self.looks.append(asyncio.get_running_loop().create_future())
        await self.looks[-1]
        return found


async def _begun(store: Slow, number: int) -> asyncio.Future[None]:
    """The look of that number, once it has begun."""
    while len(store.looks) <= number:  # noqa: ASYNC110 - turns of the loop are counted, not time
        await asyncio.sleep(0)
    return store.looks[number]


def test_concurrent_lookups_share_a_query_that_began_after_the_call():
    async def story() -> None:
        store = Slow()
        catalog = Catalog(store, dict)  # type: ignore[arg-type]
        first = asyncio.create_task(catalog.registered("a"))
        look = await _begun(store, 0)
        store.version = 2  # registered while the first look is under way
        later = [asyncio.create_task(catalog.registered("a")) for _ in range(20)]
        await asyncio.sleep(0)
        look.set_result(None)
        (await _begun(store, 1)).set_result(None)
        found = await asyncio.gather(first, *later)
        assert [each.version for each in found if each] == [1, *[2] * 20]
        assert len(store.looks) == 2

    asyncio.run(asyncio.wait_for(story(), 10))


def test_a_failed_query_fails_only_for_the_lookups_that_shared_it():
    class Broken(Slow):
        async def find(self, path: str, version: int | None = None) -> StoredPlaybook | None:
            first = not self.looks
            await super().find(path, version)
            if first:
                raise OSError("away")
            return None

    async def story() -> None:
        store = Broken()
        catalog = Catalog(store, dict)  # type: ignore[arg-type]
        first, second = (asyncio.create_task(catalog.registered("a")) for _ in range(2))
        (await _begun(store, 0)).set_result(None)
        with pytest.raises(OSError, match="away"):
            await first
        (await _begun(store, 1)).set_result(None)
        assert await second is None

    asyncio.run(asyncio.wait_for(story(), 10))


@pytest.mark.parametrize("requested", ["submit", "register"])
def test_compiling_a_long_text_does_not_block_other_requests(requested, monkeypatch):
    head = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: x, path: x}\n"
    short = head + "workflow: [{step: a, tool: {kind: noop}}]\n"
    long = short + "# " + "x" * MAX_INLINE_CHARACTERS
    answered = threading.Event()
    check = Catalog.check

    def held_up(self: Catalog, source: Source, **how: bool) -> Compilation:
        if len(source.text) > MAX_INLINE_CHARACTERS:
            assert answered.wait(10), "no other request was answered meanwhile"
        return check(self, source, **how)

    async def story() -> None:
        monkeypatch.setattr(Catalog, "check", held_up)
        orchestrator = make_orchestrator()
        if requested == "submit":
            slow = asyncio.ensure_future(orchestrator.submit(Submission(text=long)))
        else:
            slow = asyncio.ensure_future(orchestrator.catalog.register(Source(long), 0.0))
        await asyncio.sleep(0)
        assert await orchestrator.submit(Submission(text=short))
        assert not slow.done()
        answered.set()
        assert await slow
        await orchestrator.close()

    asyncio.run(asyncio.wait_for(story(), 30))


def text(number: int) -> str:
    """A playbook that differs from the others."""
    return TEXT.replace("n: 1", f"n: {number}")


def catalog(store: MemoryPlaybookStore | None = None, **options) -> Catalog:
    return Catalog(store or MemoryPlaybookStore(), specs, **options)


# ── compilation ─────────────────────────────────────────────────────────────────────────


def test_a_playbook_is_compiled_once_for_each_mode_and_file(monkeypatch):
    checked: list[tuple[str, bool, bool]] = []
    check = Catalog.check

    def counted(self: Catalog, source: Source, *, strict: bool = False, legacy: bool = False) -> Compilation:
        checked.append((source.file, strict, legacy))
        return check(self, source, strict=strict, legacy=legacy)

    monkeypatch.setattr(Catalog, "check", counted)

    async def story() -> None:
        playbooks = catalog()
        modes = [(strict, legacy) for strict in (False, True) for legacy in (False, True)]
        for _ in range(2):
            for strict, legacy in modes:
                await playbooks.compile(Source(TEXT), strict=strict, legacy=legacy)
            other = await playbooks.compile(Source(TEXT, "b.yaml"))
        assert checked == [*(("", *mode) for mode in modes), ("b.yaml", False, False)]
        assert (other.digest, other.file) == (source_digest(Source(TEXT, "b.yaml")), "b.yaml")
        assert await playbooks.load(other.digest) is other

    asyncio.run(story())


def test_a_digest_depends_on_the_text_and_the_file():
    sources = [Source("x"), Source("y"), Source("x", "f"), Source("", "fx")]
    assert len({source_digest(each) for each in sources}) == 4
    assert {len(source_digest(each)) for each in sources} == {32}
    assert source_digest(Source("x", "f", "7")) == source_digest(Source("x", "f"))  # the version is no part of it


def test_a_text_with_errors_is_refused_with_all_of_them():
    wrong = TEXT.replace("kind: noop", "kind: none_such").replace("step: a", "step: a, next: [missing]")

    async def story() -> None:
        for size in (0, MAX_INLINE_CHARACTERS):
            with pytest.raises(InvalidPlaybook) as refused:
                await catalog().compile(Source(wrong + "#" * size))
            assert len(refused.value.diagnostics) >= 2

    asyncio.run(story())


@pytest.mark.parametrize("mode", [{}, {"strict": True}, {"legacy": True}, {"strict": True, "legacy": True}])
def test_an_execution_loads_the_playbook_in_the_mode_it_was_compiled_in(mode):
    async def story() -> None:
        playbooks = catalog()
        compiled = await playbooks.compile(Source(TEXT), **mode)
        assert await playbooks.load(compiled.digest) is compiled  # the store, which has no text, is not read

    asyncio.run(story())


def test_the_oldest_playbook_leaves_the_cache_when_there_are_too_many():
    async def story() -> None:
        playbooks = catalog(capacity=2)
        first, second = [await playbooks.compile(Source(text(number))) for number in (1, 2)]
        assert await playbooks.compile(Source(text(1))) is first
        third = await playbooks.compile(Source(text(3)))
        assert await playbooks.load(second.digest) is second
        assert await playbooks.load(third.digest) is third
        with pytest.raises(CorruptLog, match=rf"^the text of playbook {first.digest} is missing from the store$"):
            await playbooks.load(first.digest)

    asyncio.run(story())


def test_a_stored_text_gives_the_same_playbook_after_a_restart():
    async def story() -> None:
        store = MemoryPlaybookStore()
        playbooks = catalog(store)
        playbook = await playbooks.compile(Source(TEXT, "dir/p.yaml"))
        assert not playbooks.is_stored(playbook)
        await playbooks.store(playbook, Source(TEXT, "dir/p.yaml"))
        assert playbooks.is_stored(playbook)
        again = catalog(store)
        assert not again.is_stored(playbook)
        assert await again.source(playbook.digest) == Source(TEXT, "dir/p.yaml")
        assert await again.load(playbook.digest) == playbook
        store._texts[playbook.digest] = (TEXT + "#", "dir/p.yaml")
        with pytest.raises(CorruptLog, match=rf"^the text of playbook {playbook.digest} is damaged$"):
            await catalog(store).load(playbook.digest)

    asyncio.run(story())


def test_a_stored_text_may_use_constructs_of_earlier_versions():
    old = TEXT.replace("tool: {kind: noop}}", "type: http, url: 'http://x'}")

    async def story() -> None:
        store = MemoryPlaybookStore()
        with pytest.raises(InvalidPlaybook):
            await catalog(store).compile(Source(old))
        compiled = await catalog(store).compile(Source(old), legacy=True)
        await catalog(store).store(compiled, Source(old))
        assert await catalog(store).load(compiled.digest) == compiled

    asyncio.run(story())


def test_workers_get_the_compiled_playbook_which_is_encoded_once():
    async def story() -> None:
        playbooks = catalog(capacity=1)
        compiled = await playbooks.compile(Source(TEXT))
        encoded = await playbooks.encoded(compiled.digest)
        assert msgspec.json.decode(encoded, type=Playbook) == compiled
        other = await playbooks.compile(Source(text(2)))  # the first is compiled no more
        assert await playbooks.encoded(compiled.digest) is encoded
        await playbooks.encoded(other.digest)
        with pytest.raises(CorruptLog):
            await playbooks.encoded(compiled.digest)

    asyncio.run(story())


def test_few_long_texts_are_compiled_at_the_same_time():
    async def story() -> None:
        playbooks = catalog()
        entered, leave = threading.Semaphore(0), threading.Event()

        def work() -> bool:
            entered.release()
            return leave.wait(10)

        working = [asyncio.create_task(playbooks.run_in_thread(work)) for _ in range(MAX_COMPILE_THREADS + 1)]
        assert MAX_COMPILE_THREADS == 2  # a thread that compiles keeps the others from running
        for _ in range(MAX_COMPILE_THREADS):
            assert await asyncio.to_thread(entered.acquire, timeout=10)
        assert not entered.acquire(blocking=False)
        leave.set()
        assert await asyncio.gather(*working) == [True] * 3

    asyncio.run(story())


def test_a_file_below_the_working_folder_is_shown_relative_to_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = os.getcwd()

    async def story() -> None:
        playbooks = catalog()
        files = (f"{folder}/a/p.yaml", f"{folder}2/p.yaml", "p.yaml", "")
        shown = [(await playbooks.compile(Source(TEXT, file))).shown for file in files]
        assert shown == ["a/p.yaml", "", "", ""]

    asyncio.run(story())


# ── lookup ──────────────────────────────────────────────────────────────────────────────


def test_a_registered_playbook_comes_before_a_file_and_a_version_is_never_a_file():
    requested: list[tuple[str, str]] = []

    async def files(path: str, caller: str) -> tuple[str, str] | None:
        requested.append((path, caller))
        return (text(9), f"{path}.yaml") if path != "nothing" else None

    async def story() -> None:
        playbooks = catalog(files=files)
        await playbooks.register(Source(TEXT), 5.0)
        assert await playbooks.find("team/p", caller="main.yaml") == Source(TEXT, "", "1")
        assert requested == []
        assert await playbooks.find("team/q", caller="main.yaml") == Source(text(9), "team/q.yaml")
        assert requested == [("team/q", "main.yaml")]
        where = r"^there is no playbook 'nothing' in the catalog or as a file; register it with `noetl register FILE`$"
        with pytest.raises(NotFound, match=where):
            await playbooks.find("nothing")
        with pytest.raises(NotFound, match=r"^there is no playbook 'nothing' version 2 in the catalog; register it"):
            await playbooks.find("nothing", 2)
        with pytest.raises(NotFound, match=r"^there is no playbook 'team/q' in the catalog; did you mean 'team/p'\?$"):
            await catalog(playbooks.playbooks).find("team/q")  # a catalog without files
        assert requested == [("team/q", "main.yaml"), ("nothing", "")]

    asyncio.run(story())


@pytest.mark.parametrize("with_files", [False, True])
def test_a_playbook_of_a_bundle_finds_its_child_in_the_bundle(with_files):
    async def never(path: str, caller: str) -> tuple[str, str] | None:
        raise AssertionError(path)

    contents = {"main.yaml": TEXT, "child.yaml": text(4)}
    bundle = Bundle({name: file_digest(each.encode()) for name, each in contents.items()}, Profile({"n": 7}))
    main = bundle_file(bundle.digest, "main.yaml")

    async def story() -> None:
        playbooks = catalog(files=never if with_files else None)
        await playbooks.playbooks.save_files({file_digest(each.encode()): each.encode() for each in contents.values()})
        await playbooks.bundles.add(bundle)
        stored = await playbooks.register(Source(TEXT, main), 5.0, origin=Origin("shop"))
        assert (stored.file, stored.origin, stored.registered_at) == (main, Origin("shop"), 5.0)
        found = await playbooks.find("child", caller=main)
        assert found == Source(text(4), bundle_file(bundle.digest, "child.yaml"))
        assert (await playbooks.compile(found)).workload == {"n": 7}  # the profile applies to the child
        with pytest.raises(NotFound, match="bundle"):
            await playbooks.register(Source(TEXT, bundle_file("0" * 32, "main.yaml")), 5.0)

    asyncio.run(story())


def test_a_registered_text_has_no_file_of_the_client():
    async def story() -> None:
        playbooks = catalog()
        stored = await playbooks.register(Source(TEXT, "/home/ada/p.yaml"), 5.0)
        digest = source_digest(Source(TEXT))
        assert stored == StoredPlaybook("team/p", 1, digest, TEXT, 5.0, "", Origin())
        again = await playbooks.register(Source(TEXT), 6.0)
        assert (again.version, again.registered_at) == (1, 5.0)
        for mode in ({"strict": True}, {"legacy": True}):
            assert (await playbooks.register(Source(TEXT), 6.0, **mode)).version == 1

    asyncio.run(story())


def test_a_damaged_version_is_named():
    async def story() -> None:
        playbooks = catalog()
        stored = await playbooks.register(Source(TEXT), 5.0)
        store = playbooks.playbooks
        assert isinstance(store, MemoryPlaybookStore)
        store._versions["team/p"] = [msgspec.structs.replace(stored, text=TEXT + "#")]
        wanted = r"^version 1 of playbook 'team/p' is damaged; restore a backup, or register it$"
        with pytest.raises(CorruptLog, match=wanted):
            await playbooks.registered("team/p")

    asyncio.run(story())


def test_a_pattern_that_no_registered_playbook_has_is_a_warning(monkeypatch):
    async def story() -> None:
        playbooks = catalog()
        await playbooks.register(Source(TEXT), 5.0)
        for pattern in ("team/p", "team/*", "t?am/p", "*"):
            assert await playbooks.unmatched(pattern) is None
        nothing = "nothing is received until one is registered"
        assert await playbooks.unmatched("jobs/*") == f"there is no registered playbook 'jobs/*'; {nothing}"
        assert await playbooks.unmatched("team/q") == (
            "there is no registered playbook 'team/q'; did you mean 'team/p'?"
        )
        monkeypatch.setattr(module, "MAX_COMPARED_PATHS", 1)  # there may be more paths than were compared
        await playbooks.register(Source(TEXT.replace("team/p", "z/p")), 5.0)
        assert [await playbooks.unmatched(each) for each in ("x*", "x?", "x[", "z/p")] == [None] * 4
        assert await playbooks.unmatched("zz") is not None

    asyncio.run(story())


def test_a_lookup_goes_on_for_the_others_when_one_caller_is_cancelled():
    async def story() -> None:
        store = Slow()
        playbooks = Catalog(store, dict)  # type: ignore[arg-type]
        callers = [asyncio.create_task(playbooks.registered("a")) for _ in range(4)]
        first = await _begun(store, 0)
        callers[0].cancel()
        callers[1].cancel()
        await asyncio.wait(callers[:2])
        first.set_result(None)
        (await _begun(store, 1)).set_result(None)
        found = await asyncio.gather(*callers[2:])
        assert [each.version for each in found if each] == [1, 1]
        assert len(store.looks) == 2
        assert playbooks._lookups == {}  # nothing is kept of paths that were looked up

    asyncio.run(asyncio.wait_for(story(), 10))


def test_lookups_of_other_paths_and_versions_are_queries_of_their_own():
    async def story() -> None:
        store = Slow()
        playbooks = Catalog(store, dict)  # type: ignore[arg-type]
        callers = [
            asyncio.create_task(playbooks.registered(path, version))
            for path, version in (("a", None), ("b", None), ("a", 1), ("a", "latest"))
        ]
        for number in range(3):
            (await _begun(store, number)).set_result(None)
        (await _begun(store, 3)).set_result(None)  # the second one of the newest version, after the first
        assert [each.path for each in await asyncio.gather(*callers) if each] == ["a", "b", "a", "a"]
        assert len(store.looks) == 4

    asyncio.run(asyncio.wait_for(story(), 10))

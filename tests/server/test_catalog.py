"""Catalog lookups are shared by concurrent callers and never older than the call."""

from __future__ import annotations

import asyncio
import threading

import pytest

from noetl.core.language.compile import Compilation
from noetl.server.orchestrator.catalog import MAX_INLINE_CHARACTERS, Catalog, Source, source_digest
from noetl.server.orchestrator.submissions import Submission
from noetl.storage.ports.playbooks import StoredPlaybook
from tests.server.conftest import make_orchestrator


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

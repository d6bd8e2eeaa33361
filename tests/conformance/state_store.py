"""The contract of `ports.StateStore` and of appends that commit state, as tests: a back end inherits them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from noetl.core.model.events import ExecutionRequested, Recorded
from noetl.errors import StateConflict, VersionConflict
from noetl.storage.ports.events import Append, EventStore, ExecutionSummary
from noetl.storage.ports.state import StateChange, StateCommit, StateStore

Scenario = Callable[[EventStore, StateStore], Awaitable[None]]


def commit(path: str, version: str, *changes: tuple[str, bytes | None, str | None], at: float = 1.0) -> StateCommit:
    """A commit of (key, data, expected version)."""
    return StateCommit(path, tuple(StateChange(key, data, was, version) for key, data, was in changes), at, "7")


def append(number: int, state: StateCommit | None, *, expected: int = 0) -> Append:
    """An append of one event that commits state."""
    execution_id = str(number)
    event = Recorded(execution_id, expected + 1, 1.0, ExecutionRequested("digest", "p"))
    summary = ExecutionSummary(execution_id, "p", "running", 1.0, seq=expected + 1)
    return Append(execution_id, expected, (event,), summary, state=state)


class StateStoreSuite:
    """All keys of a commit or none; a commit names the versions that it replaces; an append and its state together."""

    async def within(self, scenario: Scenario) -> None:
        """Run the scenario with an empty store, and close it."""
        raise LookupError("the suite's subclass says how to open its store")

    def run(self, scenario: Scenario) -> None:
        asyncio.run(self.within(scenario))

    def test_values_are_read_back_with_their_versions(self) -> None:
        async def scenario(_: EventStore, store: StateStore) -> None:
            assert await store.read("p") == {}
            await store.commit(commit("p", "1-1", ("b", b'{"x":[1,null]}', None), ("a", b'"\xc3\xa9"', None), at=2.5))
            found = await store.read("p")
            assert [(key, each.value, each.version) for key, each in found.items()] == [
                ("a", "é", "1-1"),
                ("b", {"x": [1, None]}, "1-1"),
            ]
            assert (found["a"].updated_at, found["a"].execution_id) == (2.5, "7")
            assert await store.read("q") == {}

        self.run(scenario)

    def test_a_commit_over_another_version_changes_nothing(self) -> None:
        async def scenario(_: EventStore, store: StateStore) -> None:
            await store.commit(commit("p", "1-1", ("a", b"1", None)))
            for was in (None, "1-0"):
                with pytest.raises(StateConflict, match=r"state\.a of p was changed by execution 1 "):
                    await store.commit(commit("p", "2-1", ("b", b"2", None), ("a", b"2", was)))
            assert {key: each.value for key, each in (await store.read("p")).items()} == {"a": 1}
            await store.commit(commit("p", "2-1", ("b", b"2", None), ("a", b"2", "1-1")))
            assert {key: each.value for key, each in (await store.read("p")).items()} == {"a": 2, "b": 2}

        self.run(scenario)

    def test_other_keys_do_not_conflict(self) -> None:
        async def scenario(_: EventStore, store: StateStore) -> None:
            await store.commit(commit("p", "1-1", ("a", b"1", None)))
            await store.commit(commit("p", "2-1", ("b", b"2", None)))
            await store.commit(commit("q", "3-1", ("a", b"3", None)))
            assert sorted(await store.read("p")) == ["a", "b"]

        self.run(scenario)

    def test_one_of_many_concurrent_commits_is_stored(self) -> None:
        async def scenario(_: EventStore, store: StateStore) -> None:
            commits = [commit("p", f"{number}-1", ("a", str(number).encode(), None)) for number in range(10)]
            answers = await asyncio.gather(*(store.commit(each) for each in commits), return_exceptions=True)
            assert sum(each is None for each in answers) == 1
            assert sum(isinstance(each, StateConflict) for each in answers) == 9
            assert (await store.read("p"))["a"].value == answers.index(None)

        self.run(scenario)

    def test_a_key_is_removed(self) -> None:
        async def scenario(_: EventStore, store: StateStore) -> None:
            await store.commit(commit("p", "1-1", ("a", b"1", None), ("b", b"1", None)))
            await store.commit(commit("p", "2-1", ("a", None, "1-1")))
            assert list(await store.read("p")) == ["b"]
            with pytest.raises(StateConflict):
                await store.commit(commit("p", "3-1", ("a", b"3", "1-1")))

        self.run(scenario)

    def test_playbooks_with_state_are_listed_by_page(self) -> None:
        async def scenario(_: EventStore, store: StateStore) -> None:
            for number, path in enumerate(["b/2", "a", "b/1"]):
                await store.commit(commit(path, "1-1", ("k", b"123", None), ("l", b"1", None), at=float(number)))
            first = await store.paths(limit=2)
            assert [(each.path, each.keys, each.bytes, each.updated_at) for each in first] == [
                ("a", 2, 4, 1.0),
                ("b/1", 2, 4, 2.0),
            ]
            assert [each.path for each in await store.paths("b/1", 2)] == ["b/2"]

        self.run(scenario)

    def test_an_append_and_its_state_are_stored_together(self) -> None:
        async def scenario(events: EventStore, store: StateStore) -> None:
            await events.append(append(1, commit("p", "1-1", ("a", b"1", None))))
            assert (await store.read("p"))["a"].value == 1
            with pytest.raises(StateConflict):
                await events.append(append(2, commit("p", "2-1", ("a", b"2", None))))
            assert await events.summary("2") is None
            with pytest.raises(VersionConflict):
                await events.append(append(1, commit("p", "1-9", ("a", b"9", "1-1")), expected=4))
            assert (await store.read("p"))["a"].value == 1
            await events.append(append(1, commit("p", "1-2", ("a", b"2", "1-1")), expected=1))
            assert (await store.read("p"))["a"].version == "1-2"

        self.run(scenario)

    def test_of_concurrent_appends_one_commits_and_others_are_not_affected(self) -> None:
        async def scenario(events: EventStore, store: StateStore) -> None:
            same = [append(number, commit("p", f"{number}-1", ("a", b"1", None))) for number in range(1, 6)]
            plain = [append(number, None) for number in range(11, 16)]
            own = [append(number, commit(f"q{number}", f"{number}-1", ("a", b"1", None))) for number in range(21, 26)]
            answers = await asyncio.gather(
                *(events.append(each) for each in (*same, *plain, *own)), return_exceptions=True
            )
            assert sum(isinstance(each, StateConflict) for each in answers[:5]) == 4
            assert answers[5:] == [None] * 10
            assert len(await store.paths()) == 6

        self.run(scenario)

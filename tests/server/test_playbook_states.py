"""The state of playbooks as users read and change it, and what an append commits."""

from __future__ import annotations

import asyncio

import pytest

from noetl.core.model.events import Recorded, StateCommitted, StepSkipped
from noetl.errors import Conflict, NotFound, RequestRefused
from noetl.server.orchestrator.playbook_states import (
    MAX_BYTES,
    MAX_KEY,
    PlaybookStates,
    commit_of,
    path_document,
    state_document,
)
from noetl.storage.ports.state import StateChange, StateEntry, StatePath
from noetl.storage.state.memory import MemoryStateStore


class Clock:
    def now(self) -> float:
        return 12.0


@pytest.fixture
def states():
    return PlaybookStates(MemoryStateStore(), Clock())


def do(work):
    return asyncio.run(work)


def committed(seq, values, replaced, version):
    return Recorded("7", seq, float(seq), StateCommitted(values=values, replaced=replaced, version=version))


def test_an_append_without_a_commit_stores_no_state():
    assert commit_of("p", []) is None
    assert commit_of("p", [Recorded("7", 1, 1.0, StepSkipped("s", "t1", "closed"))]) is None


def test_of_several_commits_of_one_key_the_last_value_replaces_the_first_version():
    events = [
        committed(3, {"a": 1, "b": 2}, {"a": "v1"}, "7-3"),
        Recorded("7", 4, 4.0, StepSkipped("s", "t1", "closed")),
        committed(5, {"a": 10}, {"a": "7-3"}, "7-5"),
    ]
    commit = commit_of("p", events)
    assert (commit.path, commit.at, commit.execution_id) == ("p", 5.0, "7")
    assert commit.changes == (StateChange("a", b"10", "v1", "7-5"), StateChange("b", b"2", None, "7-3"))


def test_values_are_set_by_key_and_by_path_and_read_with_their_versions(states):
    entries = do(states.set("p", {"a": {"x": 1}, "n": 5}))
    assert [(each.key, each.value) for each in entries] == [("a", {"x": 1}), ("n", 5)]
    do(states.set("p", {"a.y.z": 2}))
    values, versions = do(states.read("p"))
    assert values == {"a": {"x": 1, "y": {"z": 2}}, "n": 5}
    assert versions["n"] == entries[1].version
    assert versions["a"] != entries[0].version
    assert all(version.startswith("user-") for version in versions.values())
    assert do(states.entries("p"))[0].updated_at == 12.0
    assert [each.path for each in do(states.paths())] == ["p"]
    assert do(states.paths(after="p")) == []


def test_setting_nothing_changes_nothing(states):
    before = do(states.set("p", {"a": 1}))
    assert do(states.set("p", {})) == before


def test_a_value_is_set_only_over_the_expected_version(states):
    (entry,) = do(states.set("p", {"a": 1}, {"a": None}))
    with pytest.raises(Conflict, match="in the meantime; nothing was set"):
        do(states.set("p", {"a": 2}, {"a": None}))
    with pytest.raises(Conflict):
        do(states.set("p", {"a": 2}, {"a": "another"}))
    assert do(states.set("p", {"a": 2}, {"a": entry.version}))[0].value == 2


@pytest.mark.parametrize("path", ["", "a\x00b"])
def test_state_needs_a_path(states, path):
    with pytest.raises(RequestRefused, match="path of a playbook"):
        do(states.set(path, {"a": 1}))


@pytest.mark.parametrize("key", ["", ".", "a.", ".a", "a..b", "a\x00", "a" * (MAX_KEY + 1)])
def test_a_key_must_be_a_name_or_a_path(states, key):
    with pytest.raises(RequestRefused, match="is not a key of state"):
        do(states.set("p", {key: 1}))
    assert do(states.entries("p")) == []


def test_the_longest_key_is_accepted(states):
    assert do(states.set("p", {"a" * MAX_KEY: 1}))


def test_the_size_of_the_whole_state_is_limited(states):
    room = MAX_BYTES - len(b'{"a":""}')
    assert do(states.set("p", {"a": "x" * room}))
    with pytest.raises(RequestRefused, match="the limit is"):
        do(states.set("p", {"b": 1}))
    assert [each.key for each in do(states.entries("p"))] == ["a"]


def test_keys_are_removed_one_by_one_or_all(states):
    do(states.set("p", {"a": 1, "b": 2, "c": 3}))
    assert do(states.reset("p", ["a"])) == 1
    assert [each.key for each in do(states.entries("p"))] == ["b", "c"]
    with pytest.raises(NotFound, match="no key 'x', 'y'"):
        do(states.reset("p", ["b", "x", "y"]))
    assert do(states.reset("p")) == 2
    assert do(states.entries("p")) == []
    with pytest.raises(NotFound, match="no state"):
        do(states.reset("p"))


@pytest.mark.parametrize("keys", [["load.copy.eu"], ["load.copy.eu", "load.copy.eu"]])
def test_a_value_below_a_key_is_removed_by_its_path(states, keys):
    do(states.set("p", {"load": {"copy": {"eu": {"cursor": 1}, "us": {"cursor": 2}}}, "n": 1}))
    do(states.reset("p", keys))
    assert {each.key: each.value for each in do(states.entries("p"))} == {
        "load": {"copy": {"us": {"cursor": 2}}},
        "n": 1,
    }
    do(states.reset("p", ["load.copy", "load"]))
    assert [each.key for each in do(states.entries("p"))] == ["n"]


@pytest.mark.parametrize("key", ["load.x", "load.copy.cursor.x", "load.", "n.x", ".load"])
def test_a_path_that_does_not_exist_removes_nothing(states, key):
    do(states.set("p", {"load": {"copy": {"cursor": 1}}, "n": 1}))
    with pytest.raises(NotFound, match=f"p has no key '{key}'"):
        do(states.reset("p", ["n", key]))
    assert len(do(states.entries("p"))) == 2


def test_a_user_can_change_a_state_that_an_execution_made_larger_than_the_limit(states, monkeypatch):
    do(states.set("p", {"a": "x" * 100, "b": 20}))
    monkeypatch.setattr("noetl.server.orchestrator.playbook_states.MAX_BYTES", 50)
    assert do(states.set("p", {"b": 30}))
    with pytest.raises(RequestRefused, match="the limit is 50"):
        do(states.set("p", {"b": 300}))


def test_documents_mask_secrets_and_name_the_writer():
    entries = [StateEntry("cursor", 5, "v1", 0.0, "7"), StateEntry("password", "secret", "v2", 1.0)]
    document = state_document("p", entries)
    assert document["path"] == "p"
    assert document["bytes"] == len(b'{"cursor":5,"password":"secret"}')
    cursor, password = document["entries"]
    assert cursor == {
        "key": "cursor", "value": 5, "version": "v1", "updated_at": "1970-01-01T00:00:00.000000Z", "execution_id": "7",
    }  # fmt: skip
    assert password["value"] != "secret"
    assert state_document("p", [])["bytes"] == 0
    row = path_document(StatePath("p", 2, 30, 0.0))
    assert row == {"path": "p", "keys": 2, "bytes": 30, "updated_at": "1970-01-01T00:00:00.000000Z"}

"""Bundles of a catalog: what is stored, checked, found beside a caller, and renamed by a profile."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from noetl.core.model.bundle import Bundle, Profile, bundle_file, file_digest
from noetl.core.model.playbook import KeychainEntry, Playbook, Step
from noetl.errors import CorruptLog, NotFound, RequestRefused
from noetl.server.orchestrator import bundles as module
from noetl.server.orchestrator.bundles import Bundles, with_profile
from noetl.storage.playbooks.memory import MemoryPlaybookStore

FILES = {"a/main.yaml": b"main", "a/child.yaml": b"\xef\xbb\xbfchild", "other.yml": b"other", "a/exact": b"exact"}
BUNDLE = Bundle({name: file_digest(content) for name, content in FILES.items()}, Profile({"n": 1}))


def do(work):
    return asyncio.run(work)


@pytest.fixture
def store():
    return MemoryPlaybookStore()


@pytest.fixture
def bundles(store):
    found = Bundles(store)
    do(store.save_files({file_digest(content): content for content in FILES.values()}))
    do(found.add(BUNDLE))
    return found


def test_a_new_bundle_names_the_files_that_are_not_stored(store):
    digests = [file_digest(content) for content in FILES.values()]
    do(store.save_files({digests[0]: b"main"}))
    assert sorted(do(Bundles(store).add(BUNDLE))) == sorted(digests[1:])
    assert do(store.bundle(BUNDLE.digest)) == BUNDLE


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "..", "a/../b", "a//b", "./a", "a/", "a\\b"])
def test_paths_outside_of_a_bundle_are_refused(store, path):
    bundle = Bundle({path: "0"})
    with pytest.raises(RequestRefused, match="is not a path inside a bundle"):
        do(Bundles(store).add(bundle))
    assert do(store.bundle(bundle.digest)) is None


def test_a_registered_text_must_be_that_of_its_file(bundles, store):
    main = bundle_file(BUNDLE.digest, "a/main.yaml")
    do(bundles.check(main, "main"))
    with pytest.raises(RequestRefused, match=r"differs from a/main\.yaml"):
        do(bundles.check(main, "changed"))
    with pytest.raises(RequestRefused, match=r"differs from a/none\.yaml"):
        do(bundles.check(bundle_file(BUNDLE.digest, "a/none.yaml"), "main"))
    with pytest.raises(NotFound, match="there is no bundle"):
        do(bundles.check(bundle_file("0" * 32, "a/main.yaml"), "main"))
    with pytest.raises(RequestRefused, match="is not a file of a bundle"):
        do(bundles.check("plain.yaml", "main"))


def test_a_bundle_whose_files_were_not_all_sent_is_refused(bundles):
    names = [f"f{number}" for number in range(7)]
    partial = Bundle({**BUNDLE.files, **{name: file_digest(name.encode()) for name in names}})
    do(bundles.add(partial))
    with pytest.raises(RequestRefused, match=r"have not been sent: f0, f1, f2, f3, f4$"):
        do(bundles.check(bundle_file(partial.digest, "a/main.yaml"), "main"))


@pytest.mark.parametrize(
    ("path", "text", "name"),
    [
        ("child", "child", "a/child.yaml"),
        ("child.yaml", "child", "a/child.yaml"),
        ("../other", "other", "other.yml"),
        ("exact", "exact", "a/exact"),
    ],
)
def test_a_child_is_found_beside_its_caller(bundles, path, text, name):
    caller = bundle_file(BUNDLE.digest, "a/main.yaml")
    assert do(bundles.find(path, caller)) == (text, bundle_file(BUNDLE.digest, name))


def test_a_child_that_is_not_in_the_bundle_is_not_found(bundles):
    assert do(bundles.find("other", bundle_file(BUNDLE.digest, "a/main.yaml"))) is None


def test_text_must_be_utf8(bundles, store):
    do(store.save_files({file_digest(b"\xff"): b"\xff"}))
    broken = Bundle({"x.yaml": file_digest(b"\xff")})
    do(bundles.add(broken))
    with pytest.raises(RequestRefused, match=r"x.yaml is not UTF-8 text"):
        do(bundles.find("x", bundle_file(broken.digest, "main.yaml")))


def test_a_bundle_is_read_once_and_the_oldest_is_dropped_from_the_cache(bundles, store, monkeypatch):
    monkeypatch.setattr(module, "MAX_CACHED", 2)
    reads: list[str] = []
    read = store.bundle

    async def counted(digest):
        reads.append(digest)
        return await read(digest)

    monkeypatch.setattr(store, "bundle", counted)
    others = [Bundle({}, Profile({"n": number})) for number in (2, 3)]
    for each in others:
        do(bundles.add(each))
    for digest in [BUNDLE.digest, BUNDLE.digest, *(each.digest for each in others), others[1].digest, BUNDLE.digest]:
        assert do(bundles.get(digest)).digest == digest
    assert reads == [BUNDLE.digest, *(each.digest for each in others), BUNDLE.digest]
    with pytest.raises(CorruptLog, match="is missing"):
        do(bundles.get("0" * 32))


def test_the_profile_of_a_file(bundles):
    assert do(bundles.profile(bundle_file(BUNDLE.digest, "a/main.yaml"))) == Profile({"n": 1})
    assert do(bundles.profile("plain.yaml")) is None


def test_a_profile_changes_the_workload_and_the_names_of_credentials():
    entries = (
        KeychainEntry("db", "credential", {}),
        KeychainEntry("api", "google_credential", {"credential": "api_dev", "scope": "read"}),
        KeychainEntry("same", "credential", {"credential": "kept"}),
        KeychainEntry("token", "static", {"credential": "db"}),
    )
    playbook = Playbook(
        name="p", path="p", entry="s", steps=(Step(name="s"),), blocks={}, file="p.yaml",
        workload={"a": {"x": 1, "y": 2}}, keychain=entries,
    )  # fmt: skip
    renamed = {"db": "db_prod", "api_dev": "api_prod", "direct": "direct_prod", "di.rect": "z", "unread": "u"}
    text = "auth: direct\nother: not-direct-this\nname: unreadable"
    found = with_profile(playbook, Profile({"a": {"y": 3}}, renamed), text)
    assert found.workload == {"a": {"x": 1, "y": 3}}
    assert {each.name: (each.kind, each.fields) for each in found.keychain} == {
        "db": ("credential", {"credential": "db_prod"}),
        "api": ("google_credential", {"credential": "api_prod", "scope": "read"}),
        "same": ("credential", {"credential": "kept"}),
        "token": ("static", {"credential": "db"}),
        "direct": ("credential", {"credential": "direct_prod"}),
    }
    assert msgspec.structs.replace(found, workload=playbook.workload, keychain=entries) == playbook

"""The registry of result schemas: versions, compatibility, concurrent registrations, and every refusal."""

from __future__ import annotations

import asyncio

import pytest

from noetl.errors import Conflict, NotFound, RequestRefused
from noetl.server.orchestrator.schema_registry import (
    MAX_ATTEMPTS,
    MAX_BYTES,
    RegisteredSchema,
    SchemaRegistry,
    document,
)
from noetl.storage.triggers.memory import MemoryTriggerStore

FIRST = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}
WIDER = {"type": "object", "properties": {"id": {"type": "integer"}}}


class Clock:
    def now(self):
        return 1_700_000_000.0


class Contended(MemoryTriggerStore):
    """Another process registers `theirs` right before each of the first `times` writes."""

    def __init__(self, theirs, times):
        super().__init__()
        self.theirs, self.times, self.writes = theirs, times, 0

    async def _other(self, name):
        self.writes += 1
        if self.times:
            self.times -= 1
            writes, left, self.times = self.writes, self.times, 0
            await SchemaRegistry(self, Clock()).register(name, self.theirs(writes), compatible="none", by="other")
            self.writes, self.times = writes, left

    async def add(self, trigger):
        await self._other(trigger.name)
        await super().add(trigger)

    async def save(self, trigger):
        await self._other(trigger.name)
        return await super().save(trigger)


def registry(rows=None):
    return SchemaRegistry(rows or MemoryTriggerStore(), Clock())


def test_versions_count_up_and_the_same_schema_keeps_its_version():
    async def scenario():
        schemas = registry()
        first = await schemas.register("orders", FIRST, by="ada")
        assert first == RegisteredSchema(
            "orders", 1, first.digest, FIRST, 1_700_000_000.0, "ada", compatible="backward"
        )
        assert await schemas.register("orders", FIRST, by="bob") == first
        second = await schemas.register("orders", WIDER)
        third = await schemas.register("orders", FIRST, compatible="none")  # not the newest: a new version
        assert [each.version for each in (second, third)] == [2, 3]
        assert (third.digest, third.compatible, third.registered_by) == (first.digest, "none", "")
        assert await schemas.versions("orders") == [third, second, first]
        assert [await schemas.find(each) for each in ("orders", "orders/v1", "orders/v2")] == [third, first, second]
        assert document(first)["registered_at"] == "2023-11-14T22:13:20.000000Z"
        assert document(first)["schema"] == FIRST

    asyncio.run(scenario())


def test_a_schema_that_accepts_less_is_refused_unless_it_is_asked_for():
    async def scenario():
        schemas = registry()
        await schemas.register("a/orders", WIDER)
        wanted = (
            r"^the schema is not backward compatible with a/orders/v1: .*id.*; "
            r"register it with `--compatible none`, or under another name$"
        )
        with pytest.raises(Conflict, match=wanted):
            await schemas.register("a/orders", FIRST)
        assert (await schemas.find("a/orders")).version == 1
        assert (await schemas.register("a/orders", FIRST, compatible="none")).version == 2

    asyncio.run(scenario())


def test_ten_incompatibilities_are_listed():
    async def scenario():
        schemas = registry()
        names = [f"f{number:02}" for number in range(12)]
        await schemas.register("wide", {"type": "object"})
        with pytest.raises(Conflict) as refused:
            await schemas.register("wide", {"type": "object", "required": names})
        assert str(refused.value).count("; ") == 10
        assert "f09" in str(refused.value) and "f10" not in str(refused.value)

    asyncio.run(scenario())


def test_the_list_has_the_newest_version_of_each_name_in_pages():
    async def scenario():
        schemas = registry()
        for name in ("c", "a", "b"):
            await schemas.register(name, WIDER)
        await schemas.register("a", FIRST, compatible="none")
        assert [(each.name, each.version) for each in await schemas.list()] == [("a", 2), ("b", 1), ("c", 1)]
        assert [each.name for each in await schemas.list(limit=2)] == ["a", "b"]
        assert [each.name for each in await schemas.list(after="b", limit=2)] == ["c"]

    asyncio.run(scenario())


def test_an_unknown_name_or_version_is_not_found():
    async def scenario():
        schemas = registry()
        await schemas.register("orders", WIDER)
        await schemas.register("orders", FIRST, compatible="none")
        with pytest.raises(NotFound, match=r"^the schema orders has no version 3; it has 1 to 2$"):
            await schemas.find("orders/v3")
        with pytest.raises(NotFound, match=r"^there is no schema 'order'; did you mean 'orders'\?$"):
            await schemas.versions("order")
        with pytest.raises(NotFound, match=r"^there is no schema 'xyz'; `noetl schema list` shows all schemas$"):
            await schemas.find("xyz/v1")

    asyncio.run(scenario())


@pytest.mark.parametrize("existing", [False, True], ids=["first", "later"])
def test_registrations_at_the_same_time_get_different_versions(existing):
    async def scenario():
        rows = Contended(lambda _: {"type": "string"}, 0)
        schemas = registry(rows)
        if existing:
            await schemas.register("n", {"type": "null"})
        rows.times = 1
        mine = await schemas.register("n", FIRST, compatible="none", by="me")
        known = await schemas.versions("n")
        assert [each.registered_by for each in known][:2] == ["me", "other"]
        assert [each.version for each in known] == list(range(len(known), 0, -1))
        assert mine == known[0]

    asyncio.run(scenario())


def test_a_name_that_others_change_all_the_time_is_a_conflict():
    async def scenario():
        rows = Contended(lambda number: {"const": number}, MAX_ATTEMPTS)
        wanted = r"^the schema n was changed at the same time by other requests; try again$"
        with pytest.raises(Conflict, match=wanted):
            await registry(rows).register("n", FIRST, compatible="none")
        assert len(await registry(rows).versions("n")) == MAX_ATTEMPTS
        rows.times = MAX_ATTEMPTS - 1
        assert (await registry(rows).register("n", FIRST, compatible="none")).version == 2 * MAX_ATTEMPTS

    asyncio.run(scenario())


NAME = r"is not a valid schema name: use letters, digits, dots, dashes and slashes, without a version$"


@pytest.mark.parametrize(
    ("name", "schema", "compatible", "wanted"),
    [
        pytest.param("a b", FIRST, "backward", rf"^'a b' {NAME}", id="space"),
        pytest.param("", FIRST, "backward", NAME, id="empty"),
        pytest.param("a/", FIRST, "backward", NAME, id="slash at the end"),
        pytest.param("a/.b", FIRST, "backward", NAME, id="dot at the beginning"),
        pytest.param("orders/v2", FIRST, "backward", NAME, id="version"),
        pytest.param("n" * 201, FIRST, "backward", NAME, id="long"),
        pytest.param("n", FIRST, "forward", r"^the compatibility is one of backward, none, not 'forward'$", id="mode"),
        pytest.param("n", {"const": "x" * MAX_BYTES}, "none", r"^a schema can have up to 256 KiB$", id="large"),
        pytest.param(
            "n",
            {"apiVersion": "noetl.io/v2", "kind": "Playbook"},
            "none",
            r"^this is not a JSON Schema, but a document of kind Playbook",
            id="playbook",
        ),
        pytest.param("n", [1], "none", r"^this is not a JSON Schema: a schema is a mapping$", id="list"),
        pytest.param("n", {"type": "nope"}, "none", r"^this is not a JSON Schema: .*nope", id="not a schema"),
    ],
)
def test_what_is_not_a_schema_with_a_name_is_refused_and_nothing_is_stored(name, schema, compatible, wanted):
    async def scenario():
        schemas = registry()
        with pytest.raises(RequestRefused, match=wanted):
            await schemas.register(name, schema, compatible=compatible)
        assert await schemas.list() == []

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("name", "schema"),
    [
        ("n" * 200, FIRST),
        ("team-a/v2.orders/x_1", FIRST),
        ("n", {"const": "x" * (MAX_BYTES - len(b'{"const":""}'))}),
        ("n", {"kind": "a property of the schema"}),
        ("n", {}),
    ],
    ids=["longest name", "dots and dashes", "largest", "kind alone", "empty"],
)
def test_the_limits_themselves_are_allowed(name, schema):
    async def scenario():
        assert (await registry().register(name, schema)).version == 1

    asyncio.run(scenario())

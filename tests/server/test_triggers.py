"""Triggers in one process: NATS, folders, objects and ends of executions become one execution each."""

from __future__ import annotations

import asyncio
import json
import os
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import nats
import pytest

from noetl.core.model.events import ExecutionRequested
from noetl.errors import NotFound, RequestRefused
from noetl.runtime.clock import RealClock
from noetl.runtime.tasks import running
from noetl.server.composition import Options, Stores, build_orchestrator
from noetl.server.orchestrator.catalog import Source
from noetl.server.scheduling.deliveries import Deliveries
from noetl.server.scheduling.kinds import KINDS
from noetl.server.scheduling.scheduler import Scheduler, run_schedules
from noetl.server.scheduling.sources import manager
from noetl.server.scheduling.sources.manager import TriggerSources
from noetl.server.scheduling.trigger_service import Triggers
from noetl.storage.events.memory import MemoryEventStore
from noetl.storage.playbooks.memory import MemoryPlaybookStore
from noetl.storage.ports.deliveries import DeliveryFilter
from noetl.storage.ports.events import ExecutionFilter
from noetl.storage.queue.memory import MemoryRunQueue
from noetl.storage.triggers.delivery_memory import MemoryDeliveryStore
from noetl.storage.triggers.memory import MemoryTriggerStore
from noetl.tools.registry import specs
from tests.server.conftest import NoResults
from tests.waiting import until

PLAYBOOK = (
    "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{name: {0}, path: {0}}}\nworkflow:\n  - step: start\n{1}"
)


class Credentials:
    """Credentials in memory."""

    def __init__(self) -> None:
        self.known: dict[str, dict[str, Any]] = {}

    async def get(self, name: str) -> dict[str, Any] | None:
        return self.known.get(name)

    async def list(self) -> list[tuple[str, str]]:
        return [(name, "generic") for name in self.known]


class Installation:
    """Stores that outlive the servers, and one server at a time."""

    def __init__(self) -> None:
        self.events, self.playbooks = MemoryEventStore(), MemoryPlaybookStore()
        self.rows, self.kept = MemoryTriggerStore(), MemoryDeliveryStore()
        self.credentials = Credentials()
        self.number = 0

    @asynccontextmanager
    async def server(self) -> AsyncIterator[Deliveries]:
        """Run a server for the duration of the block."""
        self.number += 1
        stores = Stores(self.events, self.playbooks, NoResults(), MemoryRunQueue())
        orchestrator = build_orchestrator(stores, specs, options=Options(process_number=self.number))
        clock = RealClock()
        self.triggers = Triggers(self.rows, orchestrator.catalog, clock, KINDS, self.credentials)  # type: ignore[arg-type]
        self.deliveries = Deliveries(self.kept, self.triggers, orchestrator, clock)
        self.sources = TriggerSources(self.deliveries, orchestrator, self.credentials, clock)  # type: ignore[arg-type]
        self.orchestrator = orchestrator
        scheduler = Scheduler(self.rows, self.deliveries, clock)
        for name, body in (("work", "    tool: {kind: noop}\n"), ("quick", "")):
            await orchestrator.catalog.register(Source(PLAYBOOK.format(name, body)), 0.0)
        try:
            async with running(self.sources.run, partial(run_schedules, scheduler)):
                yield self.deliveries
        finally:
            await orchestrator.close()

    async def payloads(self) -> list[dict[str, Any]]:
        """The payloads of all executions, oldest first."""
        rows = await self.events.executions(ExecutionFilter(limit=10_000))
        found = []
        for row in rows[::-1]:
            (first,) = await self.events.read(row.execution_id, 0, 1)
            assert isinstance(first.body, ExecutionRequested)
            found.append(first.body.payload)
        return found

    async def listening(self, kind: str, name: str) -> None:
        """Wait until the listener of a trigger has connected."""

        await until(lambda: (kind, name) in self.sources.connected)


@pytest.fixture
def here(monkeypatch) -> Installation:
    monkeypatch.setattr(manager, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(manager, "RETRY_SECONDS", (0.05,))
    return Installation()


async def reached(here: Installation, count: int) -> list[dict[str, Any]]:
    """The payloads, once there are as many executions; more are an error."""

    async def enough() -> bool:
        return len(await here.payloads()) >= count

    await until(enough)
    found = await here.payloads()
    assert len(found) == count, found
    return found


# ── NATS ────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def stream(url: str) -> AsyncIterator[tuple[Any, str]]:
    """A JetStream context with a stream of its own; its subjects are NAME.>."""
    client = await nats.connect(url)
    name = "T" + uuid.uuid4().hex[:12]
    js = client.jetstream()
    await js.add_stream(name=name, subjects=[f"{name}.>"])
    try:
        yield js, name
    finally:
        await js.delete_stream(name)
        await client.close()


def test_messages_of_a_stream_start_one_execution_each(here, nats_server):
    async def scenario() -> None:
        async with stream(nats_server) as (js, name), here.server():
            await js.publish(f"{name}.old", b"{}")
            await here.triggers.add(
                "nats",
                {"path": "work", "url": nats_server, "stream": name, "subject": f"{name}.new", "payload": {"k": 1}},
            )
            await here.listening("nats", "work")
            await js.publish(f"{name}.new", b'{"n": 1}')
            await js.publish(f"{name}.new", b"text", headers={"Nats-Msg-Id": "a"})
            found = await reached(here, 2)
            assert found == [{"k": 1, "n": 1}, {"k": 1, "body": "text"}]
            listed = await here.deliveries.list(DeliveryFilter("nats", "work"))
            assert [each.status for each in listed] == ["started", "started"]
            assert json.loads(listed[0].data)["event"]["subject"] == f"{name}.new"

    asyncio.run(scenario())


def _id(here: Installation, kind: str, name: str) -> str:
    return json.loads(here.rows._triggers[kind, name].data)["id"]


def test_messages_that_arrive_while_no_server_runs_are_processed_after_the_start(here, nats_server):
    async def scenario() -> None:
        async with stream(nats_server) as (js, name):
            fields = {"path": "work", "url": nats_server, "stream": name, "subject": f"{name}.>", "start": "all"}
            for number in range(3):
                await js.publish(f"{name}.x", json.dumps({"n": number}).encode())
            async with here.server():
                await here.triggers.add("nats", fields)
                await reached(here, 3)
            for number in range(3, 6):
                await js.publish(f"{name}.x", json.dumps({"n": number}).encode())
            async with here.server():
                found = await reached(here, 6)
                assert sorted(each["n"] for each in found) == list(range(6))

    asyncio.run(scenario())


@pytest.mark.parametrize("place", ["before the record", "before the acknowledgement", "before the start"])
def test_a_stop_anywhere_between_receipt_and_start_loses_and_doubles_nothing(here, nats_server, place, monkeypatch):
    async def scenario() -> None:
        from noetl.server.scheduling.sources import nats as source

        monkeypatch.setattr(source, "ACK_SECONDS", 1.0)
        async with stream(nats_server) as (js, name):
            stopped = asyncio.Event()

            async def stop(*_: Any, **__: Any) -> None:
                stopped.set()
                await asyncio.Event().wait()  # the process ends here

            with monkeypatch.context() as patched:
                async with here.server():
                    if place == "before the record":
                        patched.setattr(here.kept, "add", stop)
                    elif place == "before the acknowledgement":
                        patched.setattr("nats.aio.msg.Msg.ack", stop)
                    else:
                        patched.setattr(here.deliveries, "process_due", stop)
                    await here.triggers.add(
                        "nats",
                        {"path": "work", "url": nats_server, "stream": name, "subject": f"{name}.>", "start": "all"},
                    )
                    for number in range(5):
                        await js.publish(f"{name}.x", json.dumps({"n": number}).encode())
                    await stopped.wait()
            async with here.server():
                found = await reached(here, 5)
                assert sorted(each["n"] for each in found) == list(range(5))

                async def acknowledged() -> bool:
                    info = await js.consumer_info(name, f"noetl-{_id(here, 'nats', 'work')}")
                    return info.num_ack_pending == 0 and info.num_pending == 0

                await until(acknowledged)
                assert len(await here.payloads()) == 5

    asyncio.run(scenario())


def test_a_message_that_its_sender_repeats_is_one_delivery(here, nats_server):
    async def scenario() -> None:
        client = await nats.connect(nats_server)
        try:
            async with here.server():
                subject = f"t.{uuid.uuid4().hex}"
                await here.triggers.add("nats", {"path": "work", "url": nats_server, "subject": subject})
                await here.listening("nats", "work")
                for number in range(2):
                    for _ in range(2):
                        await client.publish(subject, b'{"n": %d}' % number, headers={"Nats-Msg-Id": f"id-{number}"})
                found = await reached(here, 2)
                assert sorted(each["n"] for each in found) == [0, 1]
        finally:
            await client.close()

    asyncio.run(scenario())


def test_a_server_that_cannot_be_reached_is_a_problem_of_the_trigger(here, nats_server):
    async def scenario() -> None:
        async with here.server():
            here.credentials.known["bus"] = {"url": "nats://127.0.0.1:1"}
            await here.triggers.add("nats", {"path": "work", "credential": "bus", "subject": "a.b"})

            async def problem() -> str | None:
                return (await here.triggers.get("nats", "work")).problem

            assert "refused" in str(await until(problem)).lower() or "connect" in str(await problem()).lower()
            here.credentials.known["bus"] = {"url": nats_server}
            await until(lambda: _none(problem))

    asyncio.run(scenario())


async def _none(function: Any) -> bool:
    return await function() is None


def test_removing_a_trigger_deletes_its_consumer_and_pausing_keeps_it(here, nats_server):
    async def scenario() -> None:
        async with stream(nats_server) as (js, name), here.server():
            fields = {"path": "work", "url": nats_server, "stream": name, "subject": f"{name}.>"}
            added = await here.triggers.add("nats", fields)
            consumer = f"noetl-{added.id}"

            async def consumers() -> list[str]:
                return [each.name for each in await js.consumers_info(name)]

            await until(lambda: _contains(consumers, consumer))
            await here.triggers.pause("nats", "work")
            await until(lambda: ("nats", "work") not in here.sources._running)
            await js.publish(f"{name}.x", b'{"n": 1}')
            assert await consumers() == [consumer]
            await here.triggers.resume("nats", "work")
            assert await reached(here, 1) == [{"n": 1}]
            await here.triggers.remove("nats", "work")

            async def gone() -> bool:
                return await consumers() == []

            await until(gone)

    asyncio.run(scenario())


async def _contains(function: Any, value: str) -> bool:
    return value in await function()


# ── files and objects ───────────────────────────────────────────────────────────────────


def test_new_and_changed_files_start_executions(here, tmp_path):
    async def scenario() -> None:
        folder = tmp_path / "in"
        folder.mkdir()
        (folder / "old.csv").write_text("old")
        async with here.server():
            fields = {
                "path": "work", "url": str(folder), "glob": "*.csv", "settle": 0.05, "poll": 60,
                "payload": {"file": "{{ event.name }}", "size": "{{ event.size }}"},
            }  # fmt: skip
            await here.triggers.add("object", fields)
            await here.listening("object", "work")
            (folder / "a.csv").write_text("1")
            (folder / "b.txt").write_text("1")
            assert await reached(here, 1) == [{"file": "a.csv", "size": 1}]
            (folder / "a.csv").write_text("22")
            assert (await reached(here, 2))[1] == {"file": "a.csv", "size": 2}
            (folder / "sub").mkdir()
            os.rename(folder / "b.txt", folder / "sub" / "c.csv")  # moved: its time of modification is older
            assert (await reached(here, 3))[2]["file"] == "sub/c.csv"
        (folder / "while-away.csv").write_text("333")
        os.utime(folder / "while-away.csv", (1, 1))
        async with here.server():
            assert (await reached(here, 4))[3] == {"file": "while-away.csv", "size": 3}

    asyncio.run(scenario())


def test_a_folder_that_does_not_exist_is_a_problem_until_it_does(here, tmp_path):
    async def scenario() -> None:
        async with here.server():
            await here.triggers.add(
                "object", {"path": "work", "url": str(tmp_path / "in"), "settle": 0, "existing": True}
            )

            async def problem() -> str | None:
                return (await here.triggers.get("object", "work")).problem

            assert "in" in str(await until(problem))
            (tmp_path / "in").mkdir()
            (tmp_path / "in" / "x").write_text("x")
            found = await reached(here, 1)
            assert found[0]["object"]["url"] == (tmp_path / "in" / "x").as_uri()

    asyncio.run(scenario())


def test_new_objects_of_a_bucket_start_executions_once(here, s3, bucket):
    async def scenario() -> None:
        from noetl.connections.objects import parse_location, shared_store

        fields = {**s3}
        here.credentials.known["s3"] = fields
        store = shared_store(parse_location(f"s3://{bucket}/"), fields)
        await store.put_async("in/old.csv", b"0")
        await asyncio.sleep(1.1 - time.time() % 1)  # times of objects have a resolution of one second
        async with here.server():
            definition = {
                "path": "work", "url": f"s3://{bucket}/in/", "glob": "*.csv", "credential": "s3", "poll": 0.1,
                "payload": {"name": "{{ event.name }}", "url": "{{ event.url }}"},
            }  # fmt: skip
            await here.triggers.add("object", definition)
            await here.listening("object", "work")
            await store.put_async("in/a.csv", b"1")
            await store.put_async("other/b.csv", b"1")
            await store.put_async("in/deep/c.csv", b"1")
            found = await reached(here, 2)
            assert sorted(each["name"] for each in found) == ["a.csv", "deep/c.csv"]
            assert {each["url"] for each in found} == {f"s3://{bucket}/in/a.csv", f"s3://{bucket}/in/deep/c.csv"}
            await store.put_async("in/a.csv", b"changed")
            await reached(here, 3)
        await store.put_async("in/d.csv", b"1")
        async with here.server():
            found = await reached(here, 4)
            assert found[3]["name"] == "d.csv"

    asyncio.run(scenario())


# ── ends of executions ──────────────────────────────────────────────────────────────────


def test_the_end_of_an_execution_starts_another_once(here):
    async def scenario() -> None:
        from noetl.server.orchestrator.submissions import Submission

        async with here.server():
            await here.triggers.add("execution", {"path": "work", "of": "qui*", "payload": {"of": "{{ event.path }}"}})
            await here.triggers.add("execution", {"path": "work", "of": "quick", "status": ["failed"]}, name="failures")
            await until(lambda: here.orchestrator.actors.news.enabled)
            ended = await here.orchestrator.submit(Submission(path="quick", payload={"n": 1}))
            found = await reached(here, 2)
            assert found[1] == {"of": "quick"}
            (delivery,) = await here.deliveries.list(DeliveryFilter("execution"))
            assert json.loads(delivery.data)["event"]["execution_id"] == ended
            assert await here.events.news() == []

    asyncio.run(scenario())


def test_executions_that_start_each_other_end_at_a_limit(here):
    async def scenario() -> None:
        from noetl.server.orchestrator.submissions import Submission

        async with here.server():
            await here.triggers.add("execution", {"path": "quick", "of": "quick"}, name="ping")
            await here.triggers.add("execution", {"path": "quick", "of": "quick"}, name="pong")
            await until(lambda: here.orchestrator.actors.news.enabled)
            await here.orchestrator.submit(Submission(path="quick"))

            async def refused() -> list[Any]:
                return await here.deliveries.list(DeliveryFilter(status=("failed",)))

            failed = await until(refused)
            assert "started each other" in json.loads(failed[0].data)["error"]

    asyncio.run(scenario())


EMITS = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: shop, path: shop/order}
workload: {ids: [1]}
workflow:
  - step: pay
    spec:
      policy:
        emit:
          events:
            - {name: order_paid, payload: {id: "{{ workload.ids[0] }}", note: "{{ 'x' * 10 }}"}}
            - {name: order_seen, payload: "{{ workload.ids[0] }}"}
            - {name: stock_low, payload: {}, when: "{{ workload.ids | length > 1 }}"}
    next: {arcs: [{step: hold}]}
  - step: hold
    tool: {kind: noop}
"""


def test_a_custom_event_starts_an_execution_once_also_after_a_restart(here):
    async def scenario() -> None:
        from noetl.server.orchestrator.submissions import Submission

        async with here.server():
            await here.orchestrator.catalog.register(Source(EMITS), 0.0)
            await here.triggers.add("event", {"path": "work", "event": "order_*", "of": "shop/*"}, name="orders")
            await here.triggers.add("event", {"path": "work", "event": "custom.stock_low"}, name="stock")
            await here.triggers.add("event", {"path": "work", "event": "*", "of": "other/*"}, name="others")
            await until(lambda: here.orchestrator.actors.news.custom)
            emitted = await here.orchestrator.submit(Submission(path="shop/order", payload={"ids": [7]}))
            found = await reached(here, 3)  # the step after the event still runs
            assert sorted(found[1:], key=str) == [{"body": 7}, {"id": 7, "note": "xxxxxxxxxx"}]
            deliveries = await here.deliveries.list(DeliveryFilter("event"))
            event = json.loads(deliveries[-1].data)["event"]
            assert (event["name"], event["step"], event["execution_id"]) == ("order_paid", "pay", emitted)
            assert await here.events.news() == []
        async with here.server():  # reads the log again, and starts nothing again
            await until(lambda: here.orchestrator.actors.news.custom)
            second = await here.orchestrator.submit(Submission(path="shop/order", payload={"ids": [8, 9]}))
            found = await reached(here, 7)
            assert second and sorted(found[4:], key=str) == [{"body": 8}, {"id": 8, "note": "xxxxxxxxxx"}, {}]

    asyncio.run(scenario())


def test_custom_events_are_not_read_without_a_trigger_for_them(here):
    async def scenario() -> None:
        from noetl.server.orchestrator.submissions import Submission

        async with here.server():
            await here.orchestrator.catalog.register(Source(EMITS), 0.0)
            await here.orchestrator.submit(Submission(path="shop/order"))
            assert await here.events.news() == []
            with pytest.raises(RequestRefused, match="pattern of names"):
                await here.triggers.add("event", {"path": "work", "event": ""})

    asyncio.run(scenario())


# ── rules that all kinds share ──────────────────────────────────────────────────────────


def test_replay_starts_another_execution_with_the_same_payload(here):
    async def scenario() -> None:
        async with here.server() as deliveries:
            trigger = await here.triggers.add("execution", {"path": "work", "of": "x"})
            received = await deliveries.receive(trigger, "1", {"n": 1}, event={"id": "1"})
            first = await deliveries.start(trigger, received)
            again = await deliveries.replay(first.id, "ann")
            assert again.execution_id not in (None, first.execution_id)
            assert await here.payloads() == [{"n": 1}, {"n": 1}]
            assert json.loads(again.data)["replay_of"] == first.id
            with pytest.raises(NotFound, match="no delivery"):
                await deliveries.replay("0123456789abcdef")
            await here.triggers.remove("execution", "work")
            with pytest.raises(NotFound, match="does not exist any more"):
                await deliveries.replay(first.id)

    asyncio.run(scenario())


def test_a_delivery_that_could_not_start_is_tried_again_when_it_arrives_again(here):
    async def scenario() -> None:
        async with here.server() as deliveries:
            trigger = await here.triggers.add("execution", {"path": "work", "of": "x"})
            versions = dict(here.playbooks._versions)
            here.playbooks._versions.clear()
            failed = await deliveries.start(trigger, await deliveries.receive(trigger, "1", {"n": 1}))
            assert failed.status == "failed"
            here.playbooks._versions.update(versions)
            again = await deliveries.start(trigger, await deliveries.receive(trigger, "1", {"n": 1}))
            assert (again.id, again.status) == (failed.id, "started")

    asyncio.run(scenario())


@pytest.mark.parametrize("id", ["a\x00b", "x" * 100_000, "ünï" * 400, ""])
def test_any_id_of_a_delivery_makes_a_key_that_databases_store(here, id):
    async def scenario() -> None:
        async with here.server():
            trigger = await here.triggers.add("execution", {"path": "work", "of": "x"})
            key = trigger.key(id)
            assert "\x00" not in key and len(key.encode()) < 700
            assert key == trigger.key(id) != trigger.key(id + "1")

    asyncio.run(scenario())


def test_nothing_is_started_while_the_engine_is_full_or_the_trigger_is_paused(here, monkeypatch):
    async def scenario() -> None:
        from noetl.server.scheduling import deliveries as module

        monkeypatch.setattr(module, "BACKLOG_SECONDS", 60.0)
        async with here.server() as deliveries:
            deliveries.limits.max_backlog = 2
            trigger = await here.triggers.add("execution", {"path": "work", "of": "x"})
            for number in range(5):
                await deliveries.receive(trigger, str(number), {"n": number})
            here.triggers.changed.set()
            started = await reached(here, 2)  # each waits for a worker
            assert [each["n"] for each in started] == [0, 1]
            assert await deliveries.store.counts("execution", "work") == {"started": 2, "pending": 3}
            deliveries.limits.max_backlog = 1000
            here.triggers.changed.set()
            await reached(here, 5)
            await here.triggers.pause("execution", "work")
            await deliveries.receive(trigger, "9", {"n": 9})
            await deliveries.process_due()
            assert len(await here.payloads()) == 5
            await here.triggers.resume("execution", "work")
            await reached(here, 6)

    asyncio.run(scenario())


def test_definitions_are_validated_and_replaced_as_a_whole(here):
    async def scenario() -> None:
        async with here.server():
            put = here.triggers.put
            for fields, words in (
                ({"path": "work"}, "needs of"),
                ({"path": "none", "of": "x"}, "no playbook 'none'"),
                ({"path": "work", "of": "x", "status": ["done"]}, "status"),
                ({"path": "work", "of": "x", "concurrency": 0}, "concurrency"),
                ({"path": "work", "of": "x", "id": "7"}, "has no field 'id'"),
                ({"path": "work", "of": 7}, "of: expected"),
            ):
                with pytest.raises(RequestRefused, match=words):
                    await put("execution", "e", fields)
            with pytest.raises(RequestRefused, match="not a kind of trigger"):
                await put("cron", "e", {"path": "work"})
            with pytest.raises(RequestRefused, match="password"):
                await put("nats", "n", {"path": "work", "url": "nats://me:secret@host"})
            with pytest.raises(RequestRefused, match="absolute path"):
                await put("object", "o", {"path": "work", "url": "relative/folder"})
            first = await put("execution", "e", {"path": "work", "of": "x", "overlap": "queue", "labels": {"a": "b"}})
            second = await put("execution", "e", {"path": "work", "of": "y"})
            assert (second.id, second.overlap, second.labels) == (first.id, "allow", {})
            with pytest.raises(RequestRefused, match="there is no credential 'lost'; create it with"):
                await put("object", "e", {"path": "work", "url": "s3://bucket/in/", "credential": "lost"})

    asyncio.run(scenario())


# ── kinds of plug-ins ───────────────────────────────────────────────────────────────────


def letters_kind(listen: Any) -> Any:
    from noetl.server.scheduling.plugin_triggers import kind_of
    from noetl.tool import Field, TriggerSpec

    fields = {
        "shelf": Field("string", "Where.", required=True),
        "order": Field("string", "Which first.", choices=("old", "new"), default="new"),
        "most": Field("integer", "How many."),
    }
    return kind_of(TriggerSpec(kind="letters", doc="Letters.", listen=listen, fields=fields))


@pytest.fixture
def letters(monkeypatch):
    """Installs a kind of trigger as a plug-in would."""
    from noetl.server.scheduling import plugin_triggers
    from noetl.server.scheduling.kinds import KINDS
    from noetl.server.scheduling.sources import manager

    def install(listen: Any) -> None:
        monkeypatch.setitem(KINDS, "letters", letters_kind(listen))
        monkeypatch.setitem(manager.LISTENERS, "letters", plugin_triggers.listen)

    return install


def test_a_trigger_of_a_plug_in_starts_executions_and_shows_its_problems(letters, monkeypatch):
    calls: list[Any] = []

    async def listen(call: Any) -> None:
        calls.append(call)
        if len(calls) == 1:
            raise ConnectionError("the shelf is locked")
        await call.connected()
        for number in (1, 2, 1):  # an id that arrives again is known
            await call.deliver(f"letter-{number}", {"n": number}, {"shelf": call.fields["shelf"]})
        await asyncio.Event().wait()

    letters(listen)
    here = Installation()

    async def scenario() -> None:
        async with here.server():
            here.credentials.known["key"] = {"token": "t"}
            await here.triggers.add("letters", {"path": "work", "shelf": "top", "credential": "key"})
            payloads = await reached(here, 2)
            assert sorted(payload["n"] for payload in payloads) == [1, 2]
            assert calls[1].fields == {"shelf": "top", "order": "new", "most": None}
            assert calls[1].credential == {"token": "t"}
            listed = await here.deliveries.list(DeliveryFilter("letters", "work"))
            assert [json.loads(each.data)["event"]["shelf"] for each in listed] == ["top", "top"]

    monkeypatch.setattr("noetl.server.scheduling.sources.manager.RETRY_SECONDS", (0.01,))
    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "needs shelf"),
        ({"shelf": ""}, "needs shelf"),
        ({"shelf": "a", "order": "any"}, "order is one of old, new"),
        ({"shelf": "a", "most": "many"}, "most"),
        ({"shelf": "a", "colour": "red"}, "has no field 'colour'"),
    ],
)
def test_the_fields_of_a_trigger_of_a_plug_in_are_checked(fields, said):
    from noetl.errors import RequestRefused
    from noetl.server.scheduling.triggers import define

    with pytest.raises(RequestRefused, match=said):
        define(letters_kind(None), "a", {"path": "work", **fields}, now=0.0)

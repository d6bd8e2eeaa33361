"""Notifications: rules, grouping, retries and channels, with a real SMTP server and a real HTTP server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from noetl.errors import RequestRefused
from noetl.runtime.resources import close_loop_resources
from noetl.server.composition import Options, Stores, build_orchestrator
from noetl.server.lifecycle.children import FINAL
from noetl.server.notifications.channels import Channels, NotSent
from noetl.server.notifications.notifier import RETRY_SECONDS, Notifier
from noetl.server.notifications.rules import KIND, Incident, Rules
from noetl.server.orchestrator.catalog import Source
from noetl.server.orchestrator.submissions import Submission
from noetl.server.scheduling.deliveries import Deliveries
from noetl.server.scheduling.kinds import KINDS
from noetl.server.scheduling.scheduler import Scheduler
from noetl.server.scheduling.schedules import Schedules
from noetl.server.scheduling.sources.executions import process_news
from noetl.server.scheduling.sources.manager import TriggerSources
from noetl.server.scheduling.trigger_service import Triggers
from noetl.storage.events.memory import MemoryEventStore
from noetl.storage.playbooks.memory import MemoryPlaybookStore
from noetl.storage.ports.deliveries import DeliveryFilter
from noetl.storage.queue.memory import MemoryRunQueue
from noetl.storage.triggers.delivery_memory import MemoryDeliveryStore
from noetl.storage.triggers.memory import MemoryTriggerStore
from noetl.tools.registry import specs
from tests.server.conftest import NoResults
from tests.server.test_schedules import MovedClock
from tests.smtp import Inbox, smtp_server

PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: {name}, path: {path}, labels: {{team: sales}}}}
workload: {{bad: false}}
workflow:
  - step: start
    next:
      arcs:
        - {{step: nothing, when: "{{{{ workload.bad and workload.missing.x }}}}"}}
        - {{step: end}}
  - step: nothing
  - step: end
"""
SLOW = PLAYBOOK.replace("  - step: start\n", "  - step: start\n    tool: {{kind: noop}}\n")


class Credentials:
    """Credentials in memory."""

    def __init__(self) -> None:
        self.known: dict[str, dict[str, Any]] = {}

    async def get(self, name: str) -> dict[str, Any] | None:
        return self.known.get(name)


class Here:
    """A server in parts under a clock that the test moves."""

    def __init__(self) -> None:
        self.clock = MovedClock(1_800_000_000.0)
        events, rows, kept = MemoryEventStore(), MemoryTriggerStore(), MemoryDeliveryStore()
        self.playbooks = MemoryPlaybookStore()
        self.orchestrator = build_orchestrator(
            Stores(events, self.playbooks, NoResults(), MemoryRunQueue()),
            specs,
            clock=self.clock,
            options=Options(process_number=1),
        )
        self.outbox = kept
        self.credentials = Credentials()
        self.triggers = Triggers(rows, self.orchestrator.catalog, self.clock, KINDS)
        channels = Channels(self.credentials)  # type: ignore[arg-type]
        self.notifier = Notifier(Rules(rows, self.clock), kept, self.triggers, self.orchestrator, channels, self.clock)
        self.deliveries = Deliveries(kept, self.triggers, self.orchestrator, self.clock, self.notifier)
        self.schedules = Schedules(self.triggers, self.deliveries, self.clock)
        self.scheduler = Scheduler(rows, self.deliveries, self.clock)
        self.orchestrator.actors.news.enabled = True

    async def add(self, name: str = "ops", **fields: Any) -> None:
        """Add a rule that sends mails."""
        to = {"kind": "mail", "to": "ops@example.com", "credential": "smtp"}
        await self.notifier.rules.put(name, {"on": ["failed"], "to": to, **fields})

    async def run(self, path: str = "shop/orders", *, bad: bool = False, expect: str | None = None) -> str:
        """Run an execution to its end and process its news."""
        execution_id = await self.orchestrator.submit(Submission(path=path, payload={"bad": bad}))
        summary = await self.orchestrator.summary(execution_id)
        assert summary.status == (expect or ("failed" if bad else "success"))
        await process_news(self.orchestrator, self.deliveries, [], self.notifier)
        return execution_id

    async def later(self, seconds: float) -> None:
        """Let some time pass and send what is due."""
        self.clock.time += seconds
        await self.notifier.step()

    async def statuses(self, name: str = "ops") -> list[str]:
        return [each.status for each in await self.outbox.list(DeliveryFilter(KIND, name))]


Scenario = Callable[[Here, Inbox], Awaitable[None]]


def scenario(work: Scenario) -> None:
    """Run a scenario with a mail server."""

    async def whole() -> None:
        with smtp_server() as inbox:
            here = Here()
            here.credentials.known["smtp"] = inbox.fields
            for path in ("shop/orders", "shop/stock", "hr/people"):
                text = PLAYBOOK.format(name=path.replace("/", "_"), path=path)
                await here.orchestrator.catalog.register(Source(text), 0.0)
            await here.orchestrator.catalog.register(Source(SLOW.format(name="slow", path="shop/slow")), 0.0)
            try:
                await work(here, inbox)
            finally:
                await here.orchestrator.close()
                await close_loop_resources()

    asyncio.run(whole())


def test_a_failure_is_one_mail_that_says_what_happened():
    async def work(here: Here, inbox: Inbox) -> None:
        await here.add(paths=["shop/*"], labels={"team": "sales"})
        await here.add("other", labels={"team": "legal"})
        await here.run()
        execution_id = await here.run(bad=True)
        await here.run("hr/people", bad=True)
        await here.later(0)
        (message,) = inbox.messages
        assert message["Subject"].startswith("[noetl] shop/orders failed")
        assert message["To"] == "ops@example.com"
        text = message.get_content()
        assert f"noetl why {execution_id}" in text and "missing" in text
        await process_news(here.orchestrator, here.deliveries, [], here.notifier)  # repeated after a crash
        await here.later(3600)
        assert len(inbox.messages) == 1

    scenario(work)


def test_a_storm_is_one_message_with_a_count():
    async def work(here: Here, inbox: Inbox) -> None:
        await here.add(group="5m")
        await here.run(bad=True)
        await here.later(0)
        assert len(inbox.messages) == 1
        for number in range(50):
            await here.run("shop/orders" if number % 2 else "shop/stock", bad=True)
            await here.later(1)
        assert len(inbox.messages) == 1
        await here.later(300)
        assert len(inbox.messages) == 2
        assert inbox.messages[1]["Subject"] == "[noetl] 50 failed (2 playbooks)"
        assert "and 30 more" in inbox.messages[1].get_content()
        assert await here.statuses() == ["sent"] * 51
        await here.later(1000)
        await here.run(bad=True)
        await here.later(0)
        assert len(inbox.messages) == 3

    scenario(work)


def test_a_message_is_tried_again_until_it_is_accepted_and_a_failure_is_recorded():
    async def work(here: Here, inbox: Inbox) -> None:
        await here.add()
        inbox.fail = ["451 later", "451 later"]
        await here.run(bad=True)
        await here.later(0)
        await here.later(RETRY_SECONDS[0])
        assert inbox.messages == [] and await here.statuses() == ["pending"]
        await here.later(RETRY_SECONDS[1])
        assert len(inbox.messages) == 1 and await here.statuses() == ["sent"]
        del here.credentials.known["smtp"]
        await here.run(bad=True)
        for seconds in (60, *RETRY_SECONDS, 3600, 3600, 3600):
            await here.later(seconds)
        assert (await here.statuses())[0] == "failed"
        (failed,) = await here.outbox.list(DeliveryFilter(KIND, "ops", ("failed",)))
        document = json.loads(failed.data)
        assert "no credential 'smtp'" in document["error"] and document["attempts"] == 11

    scenario(work)


def test_a_crash_after_sending_sends_the_same_message_again():
    async def work(here: Here, inbox: Inbox) -> None:
        await here.add()
        await here.run(bad=True)
        save = here.outbox.save

        async def dies(*_: Any, **__: Any) -> bool:
            raise asyncio.CancelledError("the process died here")

        here.outbox.save = dies  # type: ignore[method-assign]
        with pytest.raises(asyncio.CancelledError):
            await here.later(0)
        here.outbox.save = save  # type: ignore[method-assign]
        await here.later(0)
        assert len(inbox.messages) == 2
        assert inbox.messages[0]["Message-ID"] == inbox.messages[1]["Message-ID"]

    scenario(work)


def test_recovery_is_reported_once_after_failures():
    async def work(here: Here, inbox: Inbox) -> None:
        await here.add(on=["recovered"], group=0)
        await here.run()
        await here.run(bad=True)
        await here.run("shop/stock")  # another playbook
        await here.run()
        await here.run()
        await here.later(0)
        await here.later(1)
        assert [each["Subject"] for each in inbox.messages] == ["[noetl] shop/orders succeeded again"]

    scenario(work)


def test_a_tick_that_has_not_succeeded_by_its_deadline_is_late():
    async def work(here: Here, inbox: Inbox) -> None:
        await here.add(on=["late", "recovered"], group=0, labels={"team": "sales"})
        await here.schedules.add("shop/slow", "0 * * * *", name="slow", deadline="10m")
        await here.schedules.add("shop/orders", "0 * * * *", name="quick", deadline="10m")
        here.clock.time = (await here.schedules.get("slow")).next_at or 0
        await here.scheduler.run_due()
        await process_news(here.orchestrator, here.deliveries, [], here.notifier)
        await here.later(599)
        assert inbox.messages == []
        await here.later(2)
        await here.later(1)
        (message,) = inbox.messages
        assert "shop/slow is late" in message["Subject"]
        assert "slow" in message.get_content() and "deadline" in message.get_content()
        await here.later(3600)
        assert len(inbox.messages) == 1
        assert (await here.schedules.document(await here.schedules.get("slow")))["late"] == 1
        assert (await here.schedules.document(await here.schedules.get("quick")))["late"] == 0

    scenario(work)


def test_a_tick_that_was_dropped_or_missed_is_late():
    async def work(here: Here, inbox: Inbox) -> None:
        await here.add(on=["late"], group=0)
        await here.schedules.add("shop/orders", "0 * * * *", name="missed", deadline="10m", catch_up="none")
        here.clock.time = ((await here.schedules.get("missed")).next_at or 0) + 1800  # no server ran at the tick
        await here.scheduler.run_due()
        await here.later(0)
        await here.later(0)
        (message,) = inbox.messages
        assert "it has not started" in message.get_content()

    scenario(work)


def test_a_trigger_that_does_not_work_is_reported():
    async def work(here: Here, inbox: Inbox) -> None:
        await here.add(on=["dead_trigger"], paths=["shop/*"])
        await here.triggers.add("object", {"path": "shop/orders", "url": "/no/such/folder"}, name="files")
        sources = TriggerSources(
            here.deliveries,
            here.orchestrator,
            here.credentials,  # type: ignore[arg-type]
            here.clock,
            listener=here.notifier,
            reporter=here.notifier,
        )
        try:
            await sources.step()

            async def reported() -> list[str]:
                await here.notifier.step()
                return [each["Subject"] for each in inbox.messages]

            from tests.waiting import until

            (subject,) = await until(reported)
            assert subject.startswith("[noetl] object files does not work")
        finally:
            await sources.stop()
        here.playbooks._versions.clear()
        here.clock.time += 120
        trigger = await here.triggers.get("object", "files")
        await here.deliveries.start(trigger, await here.deliveries.receive(trigger, "x", {}))
        await here.later(0)
        assert "no playbook 'shop/orders'" in inbox.messages[-1].get_content()

    scenario(work)


class Receiver:
    """An HTTP server that keeps requests and gives prepared answers."""

    def __init__(self) -> None:
        self.requests: list[tuple[dict[str, str], Any]] = []
        self.answers: list[int] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.requests.append((dict(self.headers), json.loads(body)))
                self.send_response(receiver.answers.pop(0) if receiver.answers else 200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, *_: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"
        Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def test_slack_and_http_channels():
    receiver = Receiver()

    async def work(here: Here, inbox: Inbox) -> None:
        here.credentials.known["slack"] = {"url": receiver.url}
        here.credentials.known["pager"] = {"token": "t0p", "headers": {"X-Team": "ops"}}
        await here.add("chat", to={"kind": "slack", "credential": "slack"})
        body = {
            "summary": "{{ notification.subject }}",
            "n": "{{ notification.count }}",
            "all": "{{ notification['items'] }}",
        }
        await here.add("pager", to={"kind": "http", "url": receiver.url, "body": body, "credential": "pager"})
        receiver.answers = [503, 200, 200]
        await here.run(bad=True)
        await here.later(0)
        await here.later(RETRY_SECONDS[0])
        chat = [data for _, data in receiver.requests if "text" in data]
        assert len(chat) == 2 and chat[0] == chat[1]
        assert chat[0]["text"].startswith("*shop/orders failed")
        ((headers, data),) = [each for each in receiver.requests if "summary" in each[1]]
        assert (headers["Authorization"], headers["X-Team"]) == ("Bearer t0p", "ops")
        assert (data["n"], data["all"][0]["path"]) == (1, "shop/orders")
        assert "200" in await here.notifier.test("chat")
        receiver.answers = [404]
        with pytest.raises(NotSent, match="404"):
            await here.notifier.test("chat")

    try:
        scenario(work)
    finally:
        receiver.close()


def test_a_private_address_is_not_reached_unless_it_is_allowed():
    async def work(here: Here, inbox: Inbox) -> None:
        await here.add("inner", to={"kind": "http", "url": "http://127.0.0.1:1/"})
        here.notifier._channels._allows = lambda address: False
        with pytest.raises(NotSent, match="does not allow"):
            await here.notifier.test("inner")
        await here.add()
        with pytest.raises(NotSent, match="does not allow"):
            await here.notifier.test("ops")

    scenario(work)


def test_secrets_of_a_channel_do_not_appear_in_errors():
    async def work(here: Here, inbox: Inbox) -> None:
        here.credentials.known["chat"] = {"url": "http://127.0.0.1:1/T0/B0/secret?key=s3cret"}
        here.credentials.known["pager"] = {"token": "t0p-s3cret"}
        here.credentials.known["smtp"] = {**inbox.fields, "password": "pa55-s3cret", "username": "me"}
        await here.add("chat", to={"kind": "slack", "credential": "chat"})
        await here.add("pager", to={"kind": "http", "url": "http://127.0.0.1:1/", "credential": "pager"})
        await here.add()
        for name in ("chat", "pager", "ops"):
            with pytest.raises(NotSent) as failed:
                await here.notifier.test(name)
            assert "s3cret" not in str(failed.value) and "B0" not in str(failed.value)

    scenario(work)


def test_wrong_rules_are_refused():
    async def work(here: Here, inbox: Inbox) -> None:
        mail = {"kind": "mail", "to": "a@b.c", "credential": "smtp"}
        for fields, words in (
            ({"to": mail}, "needs on"),
            ({"on": [], "to": mail}, "at least one"),
            ({"on": ["fails"], "to": mail}, "on is one of failed"),
            ({"on": ["event:"], "to": mail}, "name of a custom event"),
            ({"on": ["event:custom."], "to": mail}, "name of a custom event"),
            ({"on": [5], "to": mail}, "on is one of failed"),
            ({"on": ["failed"]}, "needs to"),
            ({"on": ["failed"], "to": {"kind": "fax"}}, "mail, slack or http"),
            ({"on": ["failed"], "to": {**mail, "to": "nobody"}}, "not a mail address"),
            ({"on": ["failed"], "to": {**mail, "too": 1}}, "too"),
            ({"on": ["failed"], "to": {"kind": "http", "url": "ftp://x"}}, "http or https"),
            ({"on": ["failed"], "to": {"kind": "http", "url": "http://x", "body": "{{ nothing.x }}"}}, "notification"),
            ({"on": ["failed"], "to": mail, "group": "soon"}, "duration"),
            ({"on": ["failed"], "to": mail, "path": "x"}, "no field 'path'"),
        ):
            with pytest.raises(RequestRefused, match=words):
                await here.notifier.rules.put("bad", fields)

    scenario(work)


def test_a_removed_rule_drops_what_it_has_not_sent():
    async def work(here: Here, inbox: Inbox) -> None:
        await here.add()
        await here.run(bad=True)
        await here.notifier.rules.remove("ops")
        await here.later(0)
        assert inbox.messages == [] and await here.statuses() == ["skipped"]

    scenario(work)


def test_a_waiting_execution_is_reported_with_what_it_waits_for():
    assert "waiting" not in FINAL

    async def work(here: Here, inbox: Inbox) -> None:
        await here.add(on=["waiting"])
        incident = Incident("waiting", "waiting:1:5", "shop/orders", here.clock.now(), "shop/orders waits: approve")
        assert await here.notifier.report(incident) == 1
        assert await here.notifier.report(incident) == 1
        await here.later(0)
        assert [each["Subject"] for each in inbox.messages] == ["[noetl] shop/orders waits: approve"]

    scenario(work)

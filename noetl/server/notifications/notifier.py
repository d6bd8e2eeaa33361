"""The notifier: from an occurrence to a message that a channel has accepted.

An occurrence becomes one row of the outbox per matching rule, under a key of its own. A row is sent when it is due:
at once, unless the rule has sent a message within its `group` time; then at the end of that time, together with all
others, as one message with their number. A message that a channel does not accept is tried again, and after the last
attempt its rows are `failed`. A process that stops between sending and marking sends the message again, with the same
id: delivery is at least once.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from noetl.core.engine.views.open_waits import inbox_entries
from noetl.core.model.events import CustomEvent, Recorded, instant
from noetl.core.model.playbook import Playbook
from noetl.core.model.waits import InboxEntry
from noetl.errors import NoetlError, NotFound, StoreUnavailable, TemplateError
from noetl.observability import metrics
from noetl.runtime.clock import Clock
from noetl.server.answer_links import AnswerLink, AnswerLinks
from noetl.server.lifecycle.children import FINAL
from noetl.server.notifications.channels import Channels, NotSent
from noetl.server.notifications.messages import notification_of
from noetl.server.notifications.rules import EVENT, KIND, Incident, Rule, Rules, example
from noetl.server.orchestrator.service import Orchestrator
from noetl.server.read_models.stored_values import restored
from noetl.server.scheduling.schedules import LATE, Schedule
from noetl.server.scheduling.trigger_service import Triggers
from noetl.server.scheduling.triggers import Trigger
from noetl.storage.ports.cluster import LeaderLease
from noetl.storage.ports.deliveries import Delivery, DeliveryFilter, DeliveryStore
from noetl.storage.ports.events import ExecutionFilter, ExecutionSummary

log = logging.getLogger("noetl.notifications")

POLL_SECONDS = 1.0
LEADER_ROLE, LEADER_SECONDS = "notifications", 10.0
RETRY_SECONDS = (5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0)  # the last one is repeated
ATTEMPTS = 11  # to send a notification
LINK_SECONDS = 7 * 86_400.0  # how long a link answers a wait
MAX_GROUP = 1000  # occurrences in one message
OCCURRENCE_OF = {"failed": "failed", "waiting": "waiting", "success": "recovered"}  # by status
RULES_SECONDS = 1.0  # how long the rules are cached


class Notifier:
    """Matches occurrences with rules, and sends what is due."""

    def __init__(
        self,
        rules: Rules,
        outbox: DeliveryStore,
        triggers: Triggers,
        orchestrator: Orchestrator,
        channels: Channels,
        clock: Clock,
        leadership: LeaderLease | None = None,
        links: AnswerLinks | None = None,
    ) -> None:
        self.attempts = ATTEMPTS
        self.link_seconds = LINK_SECONDS
        self.rules = rules
        self._outbox = outbox
        self._triggers = triggers
        self._orchestrator = orchestrator
        self._channels = channels
        self._clock = clock
        self._leadership = leadership
        self._links = links
        self._cached: tuple[float, int, list[Rule]] = (float("-inf"), 0, [])  # when, changes, rules

    # ── occurrences ─────────────────────────────────────────────────────────────────────

    async def put_rule(self, name: str, definition: Mapping[str, Any], by: str = "") -> Rule:
        """Store a rule; it applies at once on this server, and on others within a second."""
        rule = await self.rules.put(name, definition, by=by)
        news = self._orchestrator.actors.news
        news.enabled = news.enabled or await self.is_active()
        news.custom = news.custom or await self.wants_events()
        return rule

    async def is_active(self) -> bool:
        """Whether a rule wants to know of executions."""
        return any(set(rule.on) & {"failed", "waiting", "recovered"} for rule in await self._rules())

    async def wants_events(self, path: str | None = None) -> bool:
        """Whether a rule wants custom events, of any playbook or of this one."""
        return any(
            rule.event_patterns and (path is None or any(fnmatchcase(path, pattern) for pattern in rule.paths))
            for rule in await self._rules()
        )

    async def custom_event(self, execution: ExecutionSummary, recorded: Recorded, body: CustomEvent) -> None:
        """A step has emitted a custom event; also one of a child execution."""
        if not any(fnmatchcase(body.name, each) for rule in await self._rules() for each in rule.event_patterns):
            return
        data = (await restored(self._orchestrator.results, {"data": body.data}))["data"]
        said = data if isinstance(data, str | int | float) and not isinstance(data, bool) else None
        title = f"{execution.path}: {body.name}" + (f": {said}" if said is not None else "")
        details = {"execution_id": execution.execution_id, "event": body.name, "step": body.step, "data": data}
        key = f"event:{execution.execution_id}:{recorded.seq}"
        labels = await self._labels(execution)
        await self.report(Incident(EVENT + body.name, key, execution.path, recorded.at, title, labels, details))

    async def status_changed(self, execution: ExecutionSummary) -> None:
        """An execution has ended or waits: record what rules want to know of it. Children are part of their caller."""
        wanted = {on for rule in await self._rules() for on in rule.on}
        if execution.parent is not None or OCCURRENCE_OF.get(execution.status) not in wanted:
            return
        incident = await self._incident_of(execution)
        if incident is not None:
            await self.report(incident)

    async def trigger_failed(self, trigger: Trigger, problem: str, key: str) -> None:
        """A trigger could not start an execution or receive anything."""
        title = f"{trigger.KIND} {trigger.name} does not work: {problem}"
        details = {"trigger": f"{trigger.KIND}/{trigger.name}", "problem": problem}
        labels = await self._trigger_labels(trigger)
        await self.report(
            Incident("dead_trigger", f"dead:{key}", trigger.path, self._clock.now(), title, labels, details)
        )

    async def report(self, incident: Incident) -> int:
        """Record an occurrence for every rule that wants it; returns their number."""
        wanted = [rule for rule in await self._rules() if rule.wants(incident)]
        for rule in wanted:
            now = self._clock.now()
            due = max(now, await self._last_sent(rule) + rule.group)
            row = Delivery(
                f"{int(now * 1e6):013x}{secrets.token_hex(3)}",
                KIND,
                rule.name,
                f"notify:{rule.id}:{incident.key}",
                now,
                msgspec.json.encode({"incident": incident}),
                due=due,
            )
            await self._outbox.add(row)
        return len(wanted)

    # ── sending ─────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Send what is due until cancelled."""
        unreachable = False
        while True:
            try:
                await self.step()
                unreachable = False
            except StoreUnavailable as problem:
                if not unreachable:
                    log.warning("notifications are not sent, the store is unreachable: %s", problem)
                unreachable = True
            except NoetlError as problem:
                log.error("notifications could not be processed: %s", problem)
            await asyncio.sleep(POLL_SECONDS)

    async def step(self) -> None:
        """Check deadlines and send what is due, if this server is the one that does it."""
        leadership = self._leadership
        if leadership is not None and not await leadership.acquire_leadership(LEADER_ROLE, LEADER_SECONDS):
            return
        for kind, name in await self._outbox.owners(self._clock.now()):
            try:
                if kind == LATE:
                    await self._check_deadlines(name)
                elif kind == KIND:
                    await self._send_due(name)
            except StoreUnavailable:
                raise
            except Exception as problem:  # a defect of one rule must not stop the others
                is_defect = not isinstance(problem, NoetlError)
                log.error("notifications of %s could not be processed: %s", name, problem, exc_info=is_defect)

    async def test(self, name: str) -> str:
        """Send a test message to the channel of a rule and return its answer; NotSent with the reason."""
        rule = await self.rules.get(name)
        text = f"This is a test of the notification rule {name}."
        return await self._send(
            rule, {**example(), "rule": name, "subject": f"test of {name}", "text": text}, _id(name)
        )

    async def _send_due(self, name: str) -> None:
        try:
            rule = await self.rules.get(name)
        except NotFound:
            for row in await self._outbox.pending(KIND, name, float("inf"), MAX_GROUP):
                await self._outbox.save(msgspec.structs.replace(row, status="skipped", due=None))
            return
        rows = await self._outbox.pending(KIND, name, self._clock.now(), MAX_GROUP if rule.group else 1)
        if not rows or rule.paused:
            return
        incidents = [msgspec.json.decode(row.data, type=_Row).incident for row in rows]
        try:
            notification = notification_of(rule, incidents, await self._answers(rule, incidents))
            answer = await self._send(rule, notification, _id(rows[0].key))
        except NotSent as problem:
            await self._retry(rule, rows, str(problem))
            return
        log.info("notification rule %s sent %d occurrences", name, len(rows))
        metrics.NOTIFICATIONS.add(len(rows), "sent")
        for row in rows:
            await self._outbox.save(_with(row, status="sent", due=None, answer=answer, sent_at=self._clock.now()))

    async def _answers(self, rule: Rule, incidents: Sequence[Incident]) -> dict[str, list[dict[str, str]]]:
        """Links that answer the open waits of executions, if the rule has an address for them; never stored."""
        found: dict[str, list[dict[str, str]]] = {}
        if self._links is None or not rule.answer_url:
            return found
        expires_at = self._clock.now() + self.link_seconds
        for incident in incidents:
            if incident.on != "waiting":
                continue
            for entry in await self._open_waits(incident.details["execution_id"]):
                link = AnswerLink(entry.execution_id, entry.key, f"notification {rule.name}", expires_at)
                url = f"{rule.answer_url.rstrip('/')}/answer/{self._links.token(link)}"
                found.setdefault(incident.key, []).append({"title": entry.title or entry.signal, "url": url})
        return found

    async def _open_waits(self, execution_id: str) -> list[InboxEntry]:
        """The waits that signals answer, of an execution and of its children."""
        state = await self._orchestrator.state(execution_id)
        found = inbox_entries(state)
        for child in state.children.values():
            if child.waiting and child.child is not None:
                found += await self._open_waits(child.child)
        return found

    async def _waits_only_for_quotas(self, execution_id: str) -> bool:
        """Whether it waits for its turns only, and not for an answer or a time of the author."""
        state = await self._orchestrator.state(execution_id)
        return bool(state.waits) and all(wait.request.quota is not None for wait in state.waits.values())

    async def _reasons(self, execution_id: str) -> list[str]:
        """What an execution and its children wait for."""
        state = await self._orchestrator.state(execution_id)
        reasons = [each.text for each in await self._orchestrator.why(execution_id)]
        for child in state.children.values():
            if child.waiting and child.child is not None:
                reasons = [*await self._reasons(child.child), *reasons]
        return reasons

    async def _send(self, rule: Rule, notification: Mapping[str, Any], key: str) -> str:
        try:
            return await self._channels.send(rule, notification, key)
        except TemplateError as problem:
            raise NotSent(f"the body cannot be rendered: {problem.message}") from None

    async def _retry(self, rule: Rule, rows: Sequence[Delivery], problem: str) -> None:
        for row in rows:
            attempts = msgspec.json.decode(row.data, type=_Row).attempts + 1
            if attempts >= self.attempts:
                metrics.NOTIFICATIONS.add(1, "failed")
                log.error("notification rule %s gives up after %d attempts: %s", rule.name, attempts, problem)
                await self._outbox.save(_with(row, status="failed", due=None, error=problem, attempts=attempts))
                continue
            log.warning("notification rule %s, attempt %d: %s", rule.name, attempts, problem)
            due = self._clock.now() + RETRY_SECONDS[min(attempts, len(RETRY_SECONDS)) - 1]
            await self._outbox.save(_with(row, due=due, error=problem, attempts=attempts))

    # ── what happened ───────────────────────────────────────────────────────────────────

    async def _incident_of(self, execution: ExecutionSummary) -> Incident | None:
        if execution.status == "failed":
            title = f"{execution.path} failed: {execution.error or 'see the execution'}"
            return await self._incident("failed", execution, title, execution.execution_id)
        if execution.status == "waiting":
            if await self._waits_only_for_quotas(execution.execution_id):
                return None
            reasons = await self._reasons(execution.execution_id)
            title = f"{execution.path} waits" + (f": {reasons[0]}" if reasons else "")
            key = f"{execution.execution_id}:{execution.seq}"
            return await self._incident("waiting", execution, title, key, reasons=reasons)
        if execution.status == "success" and await self._is_recovery(execution):
            title = f"{execution.path} succeeded again"
            return await self._incident("recovered", execution, title, execution.execution_id)
        return None

    async def _incident(self, on: Any, execution: ExecutionSummary, title: str, key: str, **details: Any) -> Incident:
        found = {
            "execution_id": execution.execution_id,
            "status": execution.status,
            "error": execution.error,
            "started_at": instant(execution.started_at),
            "ended_at": instant(execution.ended_at) if execution.ended_at is not None else None,
            **details,
        }
        at = execution.ended_at or self._clock.now()
        return Incident(on, f"{on}:{key}", execution.path, at, title, await self._labels(execution), found)

    async def _is_recovery(self, execution: ExecutionSummary) -> bool:
        """Whether the previous execution of the playbook failed, or this one was reported as late."""
        if execution.key is not None:
            late = await self._outbox.by_key(f"{LATE}:{execution.key}")
            if late is not None and late.status == "sent":
                return True
        before = await self._orchestrator.store.executions(
            ExecutionFilter(status=("success", "failed"), path=execution.path, before=execution.execution_id, limit=20)
        )
        previous = next((each for each in before if each.parent is None), None)
        return previous is not None and previous.status == "failed"

    async def _labels(self, execution: ExecutionSummary) -> dict[str, str]:
        """The labels of the playbook, and those of the trigger that started the execution."""
        labels = _labels(await self._orchestrator.catalog.load(execution.playbook))
        delivery = await self._outbox.by_key(execution.key) if execution.key else None
        if delivery is not None and delivery.kind in self._triggers.kinds:
            try:
                labels |= (await self._triggers.get(delivery.kind, delivery.name)).labels
            except NotFound:
                pass  # it was removed
        return labels

    async def _trigger_labels(self, trigger: Trigger) -> dict[str, str]:
        """The labels of a trigger and of the playbook that it starts, if that exists."""
        catalog = self._orchestrator.catalog
        try:
            source = await catalog.find(trigger.path, trigger.version)
            return _labels(await catalog.compile(source, legacy=True)) | trigger.labels
        except StoreUnavailable:
            raise
        except NoetlError:
            return trigger.labels

    async def _check_deadlines(self, name: str) -> None:
        """Report the ticks of a schedule whose executions have not succeeded by the deadline."""
        try:
            schedule = await self._triggers.get(Schedule.KIND, name)
        except NotFound:
            schedule = None
        for row in await self._outbox.pending(LATE, name, self._clock.now(), MAX_GROUP):
            tick = msgspec.json.decode(row.data)["tick"]
            execution = await self._orchestrator.store.by_key(row.key.removeprefix(f"{LATE}:"))
            in_time = execution is not None and execution.status == "success" and (execution.ended_at or 0) <= row.due  # type: ignore[operator]
            if not isinstance(schedule, Schedule) or schedule.deadline is None or schedule.id not in row.key or in_time:
                await self._outbox.save(msgspec.structs.replace(row, status="skipped", due=None))
                continue
            await self.report(await self._late(schedule, tick, execution, row.key))
            changed = msgspec.structs.replace(
                row, status="sent", due=None, execution_id=execution.execution_id if execution else None
            )
            await self._outbox.save(changed)

    async def _late(self, schedule: Schedule, tick: float, execution: ExecutionSummary | None, key: str) -> Incident:
        state = f"execution {execution.execution_id} is {execution.status}" if execution else "it has not started"
        if execution is not None and execution.status in FINAL:
            state = f"execution {execution.execution_id} ended as {execution.status}"
        title = f"{schedule.path} is late: tick {instant(tick)} of schedule {schedule.name}, {state}"
        details = {
            "schedule": schedule.name,
            "tick": instant(tick),
            "deadline": instant(tick + (schedule.deadline or 0.0)),
            "execution_id": execution.execution_id if execution else None,
        }
        labels = await self._trigger_labels(schedule)
        return Incident("late", key, schedule.path, self._clock.now(), title, labels, details)

    # ── internals ───────────────────────────────────────────────────────────────────────

    async def _rules(self) -> list[Rule]:
        at, changes, known = self._cached
        if changes != self.rules.changes or self._clock.monotonic() - at > RULES_SECONDS:
            changes = self.rules.changes
            known = await self.rules.all()
            self._cached = (self._clock.monotonic(), changes, known)
        return known

    async def _last_sent(self, rule: Rule) -> float:
        """When the rule last sent a message, or will send its next one."""
        newest = await self._outbox.list(DeliveryFilter(KIND, rule.name, ("sent",), limit=1))
        return msgspec.json.decode(newest[0].data, type=_Row).sent_at if newest else float("-inf")


class _Row(msgspec.Struct):
    """The document of a row of the outbox."""

    incident: Incident
    attempts: int = 0
    sent_at: float = float("-inf")


def _with(row: Delivery, *, status: Any = "pending", due: float | None, **document: Any) -> Delivery:
    data = {**msgspec.json.decode(row.data), **document}
    if status == "sent":
        data.pop("error", None)
    return msgspec.structs.replace(row, status=status, due=due, data=msgspec.json.encode(data))


def _labels(playbook: Playbook) -> dict[str, str]:
    given = playbook.metadata.get("labels")
    return {str(name): str(value) for name, value in given.items()} if isinstance(given, Mapping) else {}


def _id(key: str) -> str:
    """The id of a message: the same for a repeated attempt."""
    return "noetl-" + hashlib.sha256(key.encode()).hexdigest()[:32]

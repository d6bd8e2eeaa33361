"""Operations on what starts executions and reports on them: schedules, triggers, backfills, webhooks, notifications."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal, Unpack

from noetl.client.options import (
    BackfillOptions,
    ScheduleOptions,
    WebhookOptions,
)
from noetl.client.requests import (
    Document,
    Operation,
    Pages,
    document_of,
    execution_id_of,
    item_path,
    trigger_path,
    without_none,
)
from noetl.transport.api_connection import Request


class TriggerOperations:
    """Operations on schedules, triggers, backfills, webhooks and notifications."""

    # ── schedules ──────────────────────────────────────────────────────────────────────

    def add_schedule(self, path: str, cron: str, **options: Unpack[ScheduleOptions]) -> Operation[Document]:
        """Start a playbook at the times of a cron expression."""
        return document_of(
            (yield Request("POST", "/api/schedules", {"path": path, "cron": cron, **without_none(options)}))
        )

    def schedules(self) -> Pages[Document]:
        """All schedules, by name."""
        return Pages("/api/schedules", document_of)

    def schedule(self, name: str, count: int = 3) -> Operation[Document]:
        """A schedule with its next `count` ticks."""
        return document_of((yield Request("GET", item_path("schedules", name), query={"count": count})))

    def edit_schedule(self, name: str, fields: Mapping[str, Any]) -> Operation[Document]:
        """Change fields of a schedule; `version` and `deadline` may be None."""
        return document_of((yield Request("PATCH", item_path("schedules", name), dict(fields))))

    def run_schedule(self, name: str, *, key: str | None = None) -> Operation[Document]:
        """Start the playbook of a schedule now; a repeated `key` returns the same execution."""
        headers = {"Idempotency-Key": key} if key else {}
        return document_of((yield Request("POST", item_path("schedules", name) + "/run", headers=headers)))

    def remove_schedule(self, name: str) -> Operation[None]:
        """Delete a schedule."""
        yield Request("DELETE", item_path("schedules", name))

    def pause_schedule(self, name: str) -> Operation[Document]:
        """Stop a schedule; ticks that pass meanwhile are dropped."""
        return document_of((yield Request("POST", item_path("schedules", name) + "/pause")))

    def resume_schedule(self, name: str) -> Operation[Document]:
        """Continue a paused schedule with its next tick."""
        return document_of((yield Request("POST", item_path("schedules", name) + "/resume")))

    # ── triggers ───────────────────────────────────────────────────────────────────────

    def triggers(self, kind: str | None = None) -> Pages[Document]:
        """All triggers, by kind and name."""
        return Pages("/api/triggers", document_of, {"kind": kind} if kind else {})

    def trigger(self, kind: str, name: str) -> Operation[Document]:
        """A trigger with its newest delivery."""
        return document_of((yield Request("GET", trigger_path(kind, name))))

    def put_trigger(self, kind: str, name: str, definition: Mapping[str, Any]) -> Operation[Document]:
        """Create a trigger, or replace its definition."""
        return document_of((yield Request("PUT", trigger_path(kind, name), dict(definition))))

    def pause_trigger(self, kind: str, name: str) -> Operation[Document]:
        """Pause a trigger."""
        return document_of((yield Request("POST", trigger_path(kind, name) + "/pause")))

    def resume_trigger(self, kind: str, name: str) -> Operation[Document]:
        """Resume a trigger."""
        return document_of((yield Request("POST", trigger_path(kind, name) + "/resume")))

    def remove_trigger(self, kind: str, name: str) -> Operation[None]:
        """Delete a trigger."""
        yield Request("DELETE", trigger_path(kind, name))

    def deliveries(
        self,
        kind: str | None = None,
        name: str | None = None,
        status: str | None = None,
        *,
        limit: int | None = None,
    ) -> Pages[Document]:
        """Deliveries of triggers, newest first."""
        query = {"kind": kind, "name": name, "status": status}
        given = {each: value for each, value in query.items() if value}
        return Pages("/api/deliveries", document_of, given, "before", limit)

    def delivery(self, id: str) -> Operation[Document]:
        """A delivery with its payload."""
        return document_of((yield Request("GET", item_path("deliveries", id))))

    def replay_delivery(self, id: str) -> Operation[Document]:
        """Start another execution with the payload of a delivery."""
        return document_of((yield Request("POST", item_path("deliveries", id) + "/replay")))

    # ── notifications ──────────────────────────────────────────────────────────────────

    def notifications(self) -> Pages[Document]:
        """All notification rules, by name."""
        return Pages("/api/notifications", document_of)

    def notification(self, name: str) -> Operation[Document]:
        """A notification rule."""
        return document_of((yield Request("GET", item_path("notifications", name))))

    def put_notification(self, name: str, definition: Mapping[str, Any]) -> Operation[Document]:
        """Create a notification rule, or replace it."""
        return document_of((yield Request("PUT", item_path("notifications", name), dict(definition))))

    def test_notification(self, name: str) -> Operation[Document]:
        """Send a test message to the channel of a rule."""
        return document_of((yield Request("POST", item_path("notifications", name) + "/test")))

    def remove_notification(self, name: str) -> Operation[None]:
        """Delete a notification rule."""
        yield Request("DELETE", item_path("notifications", name))

    def notification_deliveries(self, name: str, *, limit: int | None = None) -> Pages[Document]:
        """The messages of a notification rule, newest first."""
        return Pages(item_path("notifications", name) + "/deliveries", document_of, {}, "before", limit)

    # ── backfills ──────────────────────────────────────────────────────────────────────

    def add_backfill(
        self, path: str, start: str, end: str, every: str, **options: Unpack[BackfillOptions]
    ) -> Operation[Document]:
        """Start one execution for each slot of a range; `every` is the duration of a slot (`1d`)."""
        given = without_none(options)
        if "variable" in given:
            given["as"] = given.pop("variable")
        body = {"path": path, "from": start, "to": end, "every": every, **given}
        return document_of((yield Request("POST", "/api/backfills", body)))

    def backfills(self) -> Pages[Document]:
        """All backfills with their progress, by name."""
        return Pages("/api/backfills", document_of)

    def backfill(self, name: str) -> Operation[Document]:
        """A backfill with its progress."""
        return document_of((yield Request("GET", item_path("backfills", name))))

    def control_backfill(
        self, name: str, command: Literal["pause", "resume", "cancel", "retry"]
    ) -> Operation[Document]:
        """Pause, resume or cancel a backfill, or repeat its failed slots."""
        return document_of((yield Request("POST", f"{item_path('backfills', name)}/{command}")))

    # ── webhooks ───────────────────────────────────────────────────────────────────────

    def add_webhook(self, path: str, **options: Unpack[WebhookOptions]) -> Operation[Document]:
        """Let signed requests start a playbook; without a credential the document has the generated `secret`."""
        return document_of((yield Request("POST", "/api/webhooks", {"path": path, **without_none(options)})))

    def webhooks(self) -> Pages[Document]:
        """All webhooks, by name."""
        return Pages("/api/webhooks", document_of)

    def remove_webhook(self, name: str) -> Operation[None]:
        """Delete a webhook."""
        yield Request("DELETE", item_path("webhooks", name))

    def deliver(self, name: str, body: bytes, secret: str) -> Operation[str]:
        """Sign a body and send it to a webhook; return the id of the execution that it starts."""
        from noetl.server.scheduling.webhooks import SIGNATURE, TIMESTAMP, sign

        at = str(int(time.time()))
        headers = {TIMESTAMP: at, SIGNATURE: f"sha256={sign(secret, at, body)}"}
        return execution_id_of((yield Request("POST", item_path("webhooks", name), body, headers=headers)))

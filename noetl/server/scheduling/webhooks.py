"""Webhooks: requests from other services that start an execution.

A request is accepted when its signature is valid (`signatures`); a repeated delivery returns the same execution. An
unknown webhook gets the same error as a wrong signature, so that names cannot be guessed.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, ClassVar, Literal
from urllib.parse import parse_qs

import msgspec
from msgspec import Struct

from noetl.errors import AccessRefused, NotFound, Overloaded, RequestRefused, TemplateError
from noetl.runtime.clock import Clock
from noetl.server.orchestrator.service import Orchestrator
from noetl.server.read_models.summaries import output_document
from noetl.server.scheduling.deliveries import Deliveries
from noetl.server.scheduling.signatures import (
    INVALID,
    PRESETS,
    SIGNATURE,
    TIMESTAMP,
    HmacFormat,
    Preset,
    Verified,
    check_age,
    delivery_id,
    handshake,
    hub_challenge,
    signature,
    verify,
)
from noetl.server.scheduling.trigger_service import Triggers
from noetl.server.scheduling.triggers import Trigger, check_credential, trigger_document
from noetl.storage.ports.deliveries import Delivery
from noetl.storage.ports.secrets import CredentialStore

KIND = "webhook"
WINDOW = 300.0
MAX_WAIT = 120.0
MAX_FORM_FIELDS = 1000
NOT_SUBSCRIBED = "this webhook does not confirm the subscription: hub.verify_token or hub.topic is not the one it has"
__all__ = ["SIGNATURE", "TIMESTAMP", "Webhook", "Webhooks", "payload_of", "sign", "webhook_document"]


class Webhook(Trigger, frozen=True, omit_defaults=True, kw_only=True):
    """A webhook: the playbook that a signed request starts."""

    KIND: ClassVar[str] = KIND
    DURATIONS: ClassVar[tuple[str, ...]] = ("window", "wait")
    INTERNAL: ClassVar[frozenset[str]] = Trigger.INTERNAL | {"made_credential"}

    credential: str = ""  # its field `secret` is the signing key, or a list of keys during rotation
    preset: Preset = "noetl"
    signature: HmacFormat | None = None  # of the preset hmac
    allow_unsigned: bool = False
    topic: str = ""  # of a subscription (WebSub) that this webhook confirms
    window: float = WINDOW  # tolerance of a signed timestamp in seconds
    headers: tuple[str, ...] = ()  # headers that the playbook may read
    raw_body: bool = False  # whether the playbook may read the body as it was sent
    respond: Literal["accepted", "result"] = "accepted"
    wait: float = 30.0  # seconds until a webhook that responds with the result responds without it
    made_credential: bool = False  # the credential was created for it and is removed with it

    @property
    def form(self) -> HmacFormat | None:
        """How requests are signed; None: they are not."""
        return self.signature if self.preset == "hmac" else PRESETS.get(self.preset)

    def check(self) -> None:
        """RequestRefused when the fields do not fit each other."""
        super().check()
        if (self.preset == "hmac") != (self.signature is not None):
            raise RequestRefused("preset hmac needs `signature` with at least a header, and other presets have none")
        if self.signature is not None:
            self.signature.check()
        if (self.preset == "none") != self.allow_unsigned:
            raise RequestRefused(
                "a webhook without signatures starts executions for every sender: "
                "it needs preset none and allow_unsigned true"
            )
        if not 0 < self.window <= 86_400 or not 0 < self.wait <= MAX_WAIT:
            raise RequestRefused(f"window is at most 86400 s, and wait at most {MAX_WAIT:g} s")

    def event(self, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
        """What the allow-list lets the playbook read of a request beside its data."""
        event: dict[str, Any] = {}
        if self.headers:
            event["headers"] = {name: headers[name.lower()] for name in self.headers if name.lower() in headers}
        if self.raw_body:
            event["raw_body"] = body.decode(errors="replace")
        return event


class Answer(Struct, frozen=True):
    """The response to a request: the document of a handshake, or the delivery."""

    webhook: Webhook
    delivery: Delivery | None = None
    document: dict[str, Any] | None = None


class Webhooks(Struct, eq=False):
    """The webhooks of an installation."""

    _triggers: Triggers
    _deliveries: Deliveries
    _orchestrator: Orchestrator
    _credentials: CredentialStore
    _clock: Clock

    async def add(
        self, path: str, *, name: str | None = None, by: str = "", **fields: Any
    ) -> tuple[Webhook, str | None]:
        """Store a new webhook. Without `credential` one is created; its secret is returned only here."""
        await self._check_credential(fields.get("credential"))
        webhook = _webhook(await self._triggers.add(KIND, {"path": path, **fields}, name=name, by=by))
        return await self._with_secret(webhook)

    async def put(self, name: str, fields: Mapping[str, Any], *, by: str = "") -> tuple[Webhook, str | None]:
        """Store a webhook with exactly this definition; one without `credential` keeps or gets one of its own."""
        await self._check_credential(fields.get("credential"))
        given = dict(fields)
        try:
            known = await self.get(name)
        except NotFound:
            known = None
        if known is not None and known.made_credential and not given.get("credential"):
            given["credential"] = known.credential
        return await self._with_secret(_webhook(await self._triggers.put(KIND, name, given, by=by)))

    async def _check_credential(self, credential: str | None) -> None:
        await check_credential(self._credentials, credential)
        if credential and not secrets_of(await self._credentials.get(credential)):
            raise RequestRefused(f"credential {credential!r} has no text field `secret`")

    async def _with_secret(self, webhook: Webhook) -> tuple[Webhook, str | None]:
        """The webhook, with a new credential and its secret if it needs one."""
        if webhook.credential or webhook.form is None:
            return webhook, None
        secret = secrets.token_urlsafe(32)
        credential = f"webhook-{webhook.name}"
        await self._credentials.set(credential, KIND, {"secret": secret})
        changed = await self._triggers.change(KIND, webhook.name, credential=credential, made_credential=True)
        return _webhook(changed), secret

    async def get(self, name: str) -> Webhook:
        """The webhook of a name; NotFound when there is none."""
        return _webhook(await self._triggers.get(KIND, name))

    async def list(self, *, after: str | None = None, limit: int = 100) -> list[Webhook]:
        """One page of webhooks, by name."""
        return [_webhook(each) for each in await self._triggers.list(KIND, after=after, limit=limit)]

    async def remove(self, name: str) -> None:
        """Remove a webhook, and the credential that was created for it."""
        webhook = await self.get(name)
        await self._triggers.remove(KIND, name)
        if webhook.made_credential:
            await self._credentials.delete(webhook.credential)

    async def deliver(self, name: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Record a request and start its execution; AccessRefused when its signature is not valid."""
        lowered = {each.lower(): value for each, value in headers.items()}
        webhook, verified = await self._verified(name, lowered, body)
        received = payload_of(body, lowered.get("content-type", ""))
        hello = handshake(webhook.preset, lowered, received)
        if hello is not None:
            return Answer(webhook, document=hello)
        if webhook.paused:
            raise Overloaded(f"webhook {name!r} is paused; send the request again later")
        await self._deliveries.check_room(webhook)
        id = delivery_id(webhook.preset, verified, received) or f"request:{secrets.token_hex(16)}"
        delivery = await self._received(webhook, id, received, webhook.event(lowered, body))
        return Answer(webhook, await self._deliveries.start_unless_full(webhook, delivery))

    async def challenge(self, name: str, query: Mapping[str, str]) -> str:
        """The response to a service that asks whether it may send to this webhook; AccessRefused if it may not."""
        try:
            webhook = await self.get(name)
        except NotFound:
            raise AccessRefused(NOT_SUBSCRIBED) from None
        stored = (await self._credentials.get(webhook.credential) or {}) if webhook.credential else {}
        token = stored.get("verify_token")
        tokens = [token] if isinstance(token, str) and token else []
        answer = hub_challenge(query, tokens, webhook.topic, leaving=webhook.paused)
        if answer is None:
            raise AccessRefused(NOT_SUBSCRIBED)
        return answer

    async def wait(self, execution_id: str, seconds: float) -> dict[str, Any]:
        """The output of an execution, with its status; TimeoutError when it has not ended after some seconds."""
        summary = await self._orchestrator.wait(execution_id, seconds)
        progress = await self._orchestrator.progress(execution_id)
        failed = progress.error if summary.status != "success" else None
        return {**output_document(progress.output, failed), "status": summary.status}

    async def _received(self, webhook: Webhook, id: str, received: dict[str, Any], event: dict[str, Any]) -> Delivery:
        given = {**received, "webhook": event} if event else received
        try:
            payload = webhook.render({"event": {"id": id, "body": received, **event}}, given)
        except TemplateError as problem:
            return await self._deliveries.reject(webhook, id, str(problem), event={"id": id, **event})
        return await self._deliveries.receive(webhook, id, payload, event={"id": id})

    async def _verified(self, name: str, headers: Mapping[str, str], body: bytes) -> tuple[Webhook, Verified]:
        try:
            webhook = await self.get(name)
        except NotFound:
            verify("noetl", PRESETS["noetl"], ["unknown webhook"], headers, body)  # the same work
            raise AccessRefused(INVALID) from None
        if webhook.form is None:
            return webhook, Verified(headers.get("idempotency-key"))
        known = secrets_of(await self._credentials.get(webhook.credential))
        verified = verify(webhook.preset, webhook.form, known, headers, body)
        if verified is None:
            raise AccessRefused(INVALID)
        check_age(verified, webhook.form, self._clock.now(), webhook.window)
        return webhook, verified


def secrets_of(fields: Mapping[str, Any] | None) -> list[str]:
    """The signing keys of a credential."""
    found = (fields or {}).get("secret")
    several = found if isinstance(found, list) else [found]
    return [each for each in several if isinstance(each, str) and each]


def sign(secret: str, timestamp: str, body: bytes) -> str:
    """The signature of a body at an instant, as the preset noetl has it."""
    return signature(PRESETS["noetl"], secret, timestamp, body)


def payload_of(body: bytes, content_type: str = "") -> dict[str, Any]:
    """The payload of a request body: a JSON object or a form as it is, anything else as field `body`."""
    if not body:
        return {}
    try:
        data = msgspec.json.decode(body)  # whatever the content type says: curl and others send JSON as a form
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        form = content_type.startswith("application/x-www-form-urlencoded")
        return _form(body) if form else {"body": body.decode(errors="replace")}
    return data if isinstance(data, dict) else {"body": data}


def _form(body: bytes) -> dict[str, Any]:
    """The fields of a form; one that repeats is a list. Slack sends JSON in the field `payload` alone."""
    try:
        parsed = parse_qs(body.decode(errors="replace"), keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS)
    except ValueError:
        raise RequestRefused(f"the form has more than {MAX_FORM_FIELDS:,} fields") from None
    fields: dict[str, Any] = {name: values[0] if len(values) == 1 else values for name, values in parsed.items()}
    if list(fields) == ["payload"] and isinstance(fields["payload"], str):
        inner = payload_of(fields["payload"].encode())
        return fields if list(inner) == ["body"] else inner
    return fields


def webhook_document(webhook: Webhook) -> dict[str, Any]:
    """A webhook as a JSON document."""
    return {**trigger_document(webhook), "url": f"/api/webhooks/{webhook.name}"}


def _webhook(trigger: Trigger) -> Webhook:
    assert isinstance(trigger, Webhook)
    return trigger

"""Webhooks: signed requests from outside that start an execution.

A sender signs `timestamp.body` with HMAC-SHA256 and a secret of the credential store:

    X-NoETL-Timestamp: 1767225600                  seconds since the epoch
    X-NoETL-Signature: sha256=<hex>                hmac(secret, "1767225600." + body)

A delivery is accepted when its signature is valid and its timestamp is within the webhook's window. Repeating a
delivery returns the same execution: the signature is its idempotency key. An unknown webhook gets the same error as a
wrong signature, so that names cannot be guessed.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

from noetl.core.model.events import instant
from noetl.core.model.merge import deep_merge
from noetl.errors import AccessRefused, NotFound, RequestRefused
from noetl.runtime.clock import Clock
from noetl.server.orchestrator.service import Orchestrator
from noetl.server.orchestrator.submissions import Submission
from noetl.server.scheduling.schedules import check_name, check_registered, name_after
from noetl.storage.ports.secrets import CredentialStore
from noetl.storage.ports.triggers import StoredTrigger, TriggerStore

KIND = "webhook"
TIMESTAMP, SIGNATURE = "X-NoETL-Timestamp", "X-NoETL-Signature"
WINDOW = 300.0
INVALID_SIGNATURE = "the signature is not valid for this webhook, its secret and this body"


class Webhook(Struct, frozen=True, omit_defaults=True):
    """A webhook: the playbook that a signed request starts."""

    id: str  # part of idempotency keys: a later webhook of the same name does not return old executions
    name: str
    path: str
    credential: str  # its field `secret` is the signing key, or a list of keys during rotation
    version: int | None = None
    payload: dict[str, Any] = field(default_factory=dict)  # a body is merged into it
    window: float = WINDOW
    created_at: float = 0.0
    created_by: str = ""
    made_credential: bool = False  # the credential was created for it and is removed with it


class Webhooks(Struct, eq=False):
    """The webhooks of an installation."""

    _store: TriggerStore
    _orchestrator: Orchestrator
    _credentials: CredentialStore
    _clock: Clock

    async def add(
        self,
        path: str,
        *,
        name: str | None = None,
        credential: str | None = None,
        version: int | None = None,
        payload: Mapping[str, Any] | None = None,
        window: float = WINDOW,
        by: str = "",
    ) -> tuple[Webhook, str | None]:
        """Store a new webhook. Without `credential` one is created; its secret is returned only here."""
        name = name or name_after(path)
        check_name(name)
        await check_registered(self._orchestrator.catalog, path, version)
        secret = None if credential else secrets.token_urlsafe(32)
        webhook = Webhook(
            id=secrets.token_hex(8),
            name=name,
            path=path,
            credential=credential or f"webhook-{name}",
            version=version,
            payload=dict(payload or {}),
            window=window,
            created_at=self._clock.now(),
            created_by=by,
            made_credential=secret is not None,
        )
        if secret is None and not await self._secrets(webhook):
            raise RequestRefused(f"credential {credential!r} has no text field `secret`")
        await self._store.add(StoredTrigger(KIND, name, msgspec.json.encode(webhook)))
        if secret is not None:
            await self._credentials.set(webhook.credential, KIND, {"secret": secret})
        return webhook, secret

    async def get(self, name: str) -> Webhook:
        """The webhook of a name; NotFound when there is none."""
        row = await self._store.get(KIND, name)
        if row is None:
            raise NotFound(f"there is no webhook {name!r}; `noetl webhook list` shows all webhooks")
        return _webhook(row)

    async def remove(self, name: str) -> None:
        """Remove a webhook, and the credential that was created for it."""
        webhook = await self.get(name)
        await self._store.remove(KIND, name)
        if webhook.made_credential:
            await self._credentials.delete(webhook.credential)

    async def deliver(self, name: str, timestamp: str | None, signature: str | None, body: bytes) -> str:
        """The execution that a signed request starts or has started; AccessRefused when its signature is not valid."""
        row = await self._store.get(KIND, name)
        webhook = _webhook(row) if row is not None else None
        if not timestamp or not signature:
            raise AccessRefused(f"the request is not signed: the headers {TIMESTAMP} and {SIGNATURE} are required")
        known = await self._secrets(webhook) if webhook is not None else []
        given = signature.strip().lower().removeprefix("sha256=")
        valid = False
        for secret in known or ["unknown webhook"]:  # the same work for a webhook that does not exist
            valid |= hmac.compare_digest(sign(secret, timestamp, body).encode(), given.encode())
        if webhook is None or not known or not valid:
            raise AccessRefused(INVALID_SIGNATURE)
        late = abs(self._clock.now() - float(timestamp)) if timestamp.isdecimal() and len(timestamp) < 12 else None
        if late is None or late > webhook.window:
            raise AccessRefused(
                f"the timestamp is not within {webhook.window:g} s of this server's clock; "
                "send the seconds since the epoch at the time of signing"
            )
        return await self._orchestrator.submit(
            Submission(
                path=webhook.path,
                version=webhook.version,
                payload=deep_merge(webhook.payload, payload_of(body)),
                key=f"webhook:{webhook.id}:{given}",
                requested_by=f"webhook {webhook.name}",
            )
        )

    async def _secrets(self, webhook: Webhook) -> list[str]:
        fields = await self._credentials.get(webhook.credential) or {}
        found = fields.get("secret")
        several = found if isinstance(found, list) else [found]
        return [each for each in several if isinstance(each, str) and each]

    async def list(self, *, after: str | None = None, limit: int = 100) -> list[Webhook]:
        """One page of webhooks, by name."""
        return [_webhook(row) for row in await self._store.list(KIND, after=after, limit=limit)]


def sign(secret: str, timestamp: str, body: bytes) -> str:
    """The signature of a body at an instant."""
    return hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def payload_of(body: bytes) -> dict[str, Any]:
    """The payload of a request body: a JSON object as it is, anything else as field `body`."""
    if not body:
        return {}
    try:
        data = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {"body": body.decode(errors="replace")}
    return data if isinstance(data, dict) else {"body": data}


def webhook_document(webhook: Webhook) -> dict[str, Any]:
    """A webhook as a JSON document."""
    document: dict[str, Any] = msgspec.structs.asdict(webhook)
    del document["id"]
    document["created_at"] = instant(webhook.created_at)
    document["url"] = f"/api/webhooks/{webhook.name}"
    return document


def _webhook(row: StoredTrigger) -> Webhook:
    return msgspec.json.decode(row.data, type=Webhook)

"""Sends one notification to the channel of a rule."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from noetl.connections.http.client import HttpFailure, Request, exchange
from noetl.connections.mail import Mail, MailFailure, send
from noetl.core.model.tool import Timeout
from noetl.core.templates.definitions import render_definition
from noetl.errors import NoetlError
from noetl.runtime.masking import Masker, secret_texts
from noetl.server.notifications.rules import Channel, HttpChannel, MailChannel, Rule, SlackChannel
from noetl.storage.ports.secrets import CredentialStore

TIMEOUT = Timeout(connect=10.0, total=30.0)


class NotSent(NoetlError):
    """A notification that the channel did not accept."""


class Channels:
    """The connections to channels; credentials are read when a notification is sent."""

    def __init__(self, credentials: CredentialStore, allows: Callable[[str], bool] | None = None) -> None:
        self._credentials = credentials
        self._allows = allows

    async def send(self, rule: Rule, notification: Mapping[str, Any], key: str) -> str:
        """Send a notification and return what the channel answered; NotSent with the reason.

        `key` is the same for a repeated attempt: the Message-ID of a mail, `Idempotency-Key` of a request."""
        fields = await self._fields(rule.to.credential)
        try:
            return await self._send(rule.to, fields, notification, key)
        except (MailFailure, HttpFailure, NotSent) as problem:
            raise NotSent(_without_secrets(str(problem), rule.to, fields)) from None

    async def _send(
        self, channel: Channel, fields: Mapping[str, Any], notification: Mapping[str, Any], key: str
    ) -> str:
        if isinstance(channel, MailChannel):
            return await self._mail(channel, fields, notification, key)
        if isinstance(channel, HttpChannel):
            body = render_definition(channel.body, {"notification": dict(notification)})
            return await self._request(channel.method, channel.url, body, _headers(fields), key)
        url = str(fields.get("url") or fields.get("dsn") or "")
        if not url:
            raise NotSent(f"credential {channel.credential!r} has no field `url`")
        text = f"*{notification['subject']}*\n{notification['text']}"
        return await self._request("POST", url, {"text": text}, {}, key)

    async def _mail(
        self, channel: MailChannel, fields: Mapping[str, Any], notification: Mapping[str, Any], key: str
    ) -> str:
        mail = Mail(
            to=channel.to,
            subject=f"[noetl] {notification['subject']}",
            text=notification["text"],
            sender=channel.sender,
            id=key,
        )
        sent = await send(mail, fields, allows=self._allows)
        refused = "".join(f"; {each}: {reason}" for each, reason in sent.refused.items())
        return f"accepted for {', '.join(sent.accepted)}{refused}"

    async def _request(self, method: str, url: str, body: Any, headers: Mapping[str, str], key: str) -> str:
        data = body.encode() if isinstance(body, str) else msgspec.json.encode(body)
        request = Request(
            method,
            url,
            headers={"Content-Type": "application/json", "Idempotency-Key": key, **headers},
            body=lambda: data,
            timeout=TIMEOUT,
            private=frozenset(headers),
        )
        async with exchange(request, self._allows) as answer:
            status = answer.status
            text = (await answer.read())[:500].decode(errors="replace")
        if not 200 <= status < 300:
            raise NotSent(f"status {status}: {text[:200]}")
        return f"status {status}"

    async def _fields(self, credential: str) -> Mapping[str, Any]:
        if not credential:
            return {}
        found = await self._credentials.get(credential)
        if found is None:
            raise NotSent(f"there is no credential {credential!r}")
        return found


def _without_secrets(message: str, channel: Channel, fields: Mapping[str, Any]) -> str:
    """The message without secrets of the credential; the address of a Slack webhook is one, also in part."""
    if isinstance(channel, SlackChannel):
        message = re.sub(r"https?://\S+", f"the address of credential {channel.credential!r}", message)
    return Masker(secret_texts(fields)).mask(message)


def _headers(fields: Mapping[str, Any]) -> dict[str, str]:
    headers = {str(name): str(value) for name, value in (fields.get("headers") or {}).items()}
    if fields.get("token"):
        headers.setdefault("Authorization", f"Bearer {fields['token']}")
    return headers

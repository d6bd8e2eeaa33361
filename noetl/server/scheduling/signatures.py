"""Signatures of webhook requests, as the services that send them define them.

    noetl    X-NoETL-Signature: sha256=<hex of "timestamp.body">, X-NoETL-Timestamp
    github   X-Hub-Signature-256: sha256=<hex of the body>; X-GitHub-Delivery identifies the delivery
    stripe   Stripe-Signature: t=<timestamp>,v1=<hex of "timestamp.body">[,v1=...]; the body's `id` identifies it
    slack    X-Slack-Signature: v0=<hex of "v0:timestamp:body">, X-Slack-Request-Timestamp; the body's `event_id`
    meta     X-Hub-Signature-256: sha256=<hex of the body> (Facebook, Instagram, WhatsApp)
    websub   X-Hub-Signature: <algorithm>=<hex of the body>
    hmac     as the fields of `HmacFormat` say
    none     no signature; only with `allow_unsigned`

Services that subscribe ask the address first (`hub.mode`, `hub.challenge` of WebSub and Meta; `hub_challenge`).
Every signature is a HMAC of the raw body with a secret that sender and server share. A timestamp that is part of what
is signed must be within the tolerance, so that an old request cannot be sent again.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from msgspec import Struct, structs

from noetl.errors import AccessRefused, RequestRefused

TIMESTAMP, SIGNATURE = "X-NoETL-Timestamp", "X-NoETL-Signature"
INVALID = "the signature is missing or not valid for this webhook, its secret and this body"

Preset = Literal["noetl", "github", "stripe", "slack", "meta", "websub", "hmac", "none"]
Algorithm = Literal["sha1", "sha256", "sha384", "sha512"]


class HmacFormat(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How a sender signs: `signed` has the placeholders {timestamp} and {body}."""

    header: str
    algorithm: Algorithm = "sha256"
    prefix: str = ""
    encoding: Literal["hex", "base64"] = "hex"
    timestamp_header: str | None = None
    signed: str = "{body}"
    id_header: str | None = None  # identifies a delivery; without it and without a timestamp each request is a new one

    def check(self) -> None:
        """RequestRefused when the format cannot be verified."""
        if self.signed.count("{body}") != 1:
            raise RequestRefused("signature.signed must contain {body} once")
        if ("{timestamp}" in self.signed) != (self.timestamp_header is not None):
            raise RequestRefused("signature.signed contains {timestamp} if and only if there is a timestamp_header")


PRESETS: dict[str, HmacFormat] = {
    "noetl": HmacFormat(SIGNATURE, prefix="sha256=", timestamp_header=TIMESTAMP, signed="{timestamp}.{body}"),
    "github": HmacFormat("X-Hub-Signature-256", prefix="sha256=", id_header="X-GitHub-Delivery"),
    "stripe": HmacFormat("Stripe-Signature", signed="{timestamp}.{body}", timestamp_header="Stripe-Signature"),
    "slack": HmacFormat(
        "X-Slack-Signature",
        prefix="v0=",
        signed="v0:{timestamp}:{body}",
        timestamp_header="X-Slack-Request-Timestamp",
    ),
    "meta": HmacFormat("X-Hub-Signature-256", prefix="sha256="),
    "websub": HmacFormat("X-Hub-Signature", prefix="sha256="),
}
MAX_CHALLENGE = 1000  # characters


class Verified(Struct, frozen=True):
    """A request with a valid signature."""

    id: str | None  # of the delivery; None: every request is a delivery of its own
    timestamp: float | None = None


def verify(
    preset: str, form: HmacFormat, secrets: Sequence[str], headers: Mapping[str, str], body: bytes
) -> Verified | None:
    """The verified request, or None; every secret is tried, so that the time does not depend on which one is right."""
    if preset == "websub":  # the sender chooses the algorithm
        algorithm = headers.get("x-hub-signature", "").partition("=")[0].lower()
        if algorithm in get_args(Algorithm):
            form = structs.replace(form, algorithm=algorithm, prefix=f"{algorithm}=")
    timestamp, given = _parts(preset, form, headers)
    valid = False
    for secret in secrets:
        expected = signature(form, secret, timestamp or "", body)
        for each in given:
            valid |= hmac.compare_digest(expected.encode(), each.encode())
    if not valid or (form.timestamp_header is not None and not timestamp):
        return None
    id = headers.get(form.id_header.lower()) if form.id_header else None
    if id is None and (timestamp or preset in ("meta", "websub")):  # these repeat a delivery with the same body
        id = given[0]
    return Verified(id, _number(timestamp) if timestamp else None)


def check_age(verified: Verified, form: HmacFormat, now: float, tolerance: float) -> None:
    """AccessRefused when a signed timestamp is not within the tolerance."""
    if form.timestamp_header is None:
        return
    if verified.timestamp is None or abs(now - verified.timestamp) > tolerance:
        raise AccessRefused(
            f"the timestamp is not within {tolerance:g} s of this server's clock; "
            "send the seconds since the epoch at the time of signing"
        )


def signature(form: HmacFormat, secret: str, timestamp: str, body: bytes) -> str:
    """The signature of a body, without the prefix."""
    before, _, after = form.signed.replace("{timestamp}", timestamp).partition("{body}")
    code = hmac.new(secret.encode(), before.encode() + body + after.encode(), getattr(hashlib, form.algorithm))
    return code.hexdigest() if form.encoding == "hex" else base64.b64encode(code.digest()).decode()


def handshake(preset: str, headers: Mapping[str, str], document: Any) -> dict[str, Any] | None:
    """The response to a verified request that only checks the address, and starts nothing."""
    if preset == "slack" and isinstance(document, dict) and document.get("type") == "url_verification":
        return {"challenge": document.get("challenge")}
    if preset == "github" and headers.get("x-github-event") == "ping":
        return {"status": "ok"}
    return None


def hub_challenge(query: Mapping[str, str], tokens: Sequence[str], topic: str, *, leaving: bool) -> str | None:
    """The response to the question whether a subscription is wanted (WebSub 5.3, Meta); None: it is not.

    It is wanted if the sender knows the verify token, or asks for the topic of this webhook. The end of a subscription
    is confirmed only if it is wanted (`leaving`)."""
    mode, challenge = query.get("hub.mode"), query.get("hub.challenge", "")
    token, asked = query.get("hub.verify_token", ""), query.get("hub.topic", "")
    known = any(hmac.compare_digest(each.encode(), token.encode()) for each in tokens)
    if not known and not (topic and asked == topic):
        return None
    if mode == "denied":
        return ""
    if mode not in ("subscribe", "unsubscribe") or (mode == "unsubscribe") != leaving:
        return None
    return challenge if 0 < len(challenge) <= MAX_CHALLENGE else None


def delivery_id(preset: str, verified: Verified, document: Any) -> str | None:
    """What identifies a delivery: the sender's id if the body has one, else what the headers gave."""
    field = {"stripe": "id", "slack": "event_id"}.get(preset)
    if field and isinstance(document, dict) and isinstance(document.get(field), str):
        return str(document[field])
    return verified.id


def _parts(preset: str, form: HmacFormat, headers: Mapping[str, str]) -> tuple[str | None, list[str]]:
    """The timestamp and the signatures of a request."""
    header = headers.get(form.header.lower(), "").strip()
    if preset == "stripe":
        fields = [each.strip().partition("=") for each in header.split(",")]
        stamps = [value for name, _, value in fields if name == "t"]
        return (stamps[0] if stamps else None), [value for name, _, value in fields if name == "v1"]
    timestamp = headers.get(form.timestamp_header.lower()) if form.timestamp_header else None
    given = header.removeprefix(form.prefix)
    return timestamp, [given.lower() if form.encoding == "hex" else given] if header else []


def _number(timestamp: str) -> float | None:
    return float(timestamp) if timestamp.isdecimal() and len(timestamp) < 12 else None

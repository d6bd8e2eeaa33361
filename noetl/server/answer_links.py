"""Links that answer one wait: signed with the installation's master key, with an expiry, valid for one answer.

A link names the execution and the wait. It is used up when the wait ends, in whatever way, because no other wait has
the same key; so nothing has to be stored. Every master key of the ring verifies a link, so links survive a rotation.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable

import msgspec
from msgspec import Struct

from noetl.errors import NotFound
from noetl.secrets.master_key import KeyRing

_PURPOSE = b"noetl answer link"
MAX_TOKEN = 4_000


class AnswerLink(Struct, frozen=True, array_like=True):
    """The content of a link."""

    execution_id: str
    wait: str  # key of the wait
    by: str  # recorded as the sender of the signal
    expires_at: float


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AnswerLink).decode


class AnswerLinks:
    """Creates and verifies links."""

    def __init__(self, ring: Callable[[], KeyRing]) -> None:
        self._ring = ring

    def token(self, link: AnswerLink) -> str:
        """The text of a link: its content and its signature."""
        content = _base64(_encode(link))
        ring = self._ring()
        return f"{content}.{_signature(ring.keys[ring.current], content)}"

    def read(self, token: str, now: float) -> AnswerLink:
        """The content of a link; NotFound if it is not one of ours or has expired."""
        content, _, signature = token.partition(".")
        if len(token) > MAX_TOKEN or not token.isascii() or not self._verifies(content, signature):
            raise NotFound("this link is not valid")
        try:
            link = _decode(base64.urlsafe_b64decode(content + "=" * (-len(content) % 4)))
        except (binascii.Error, msgspec.MsgspecError, ValueError):
            raise NotFound("this link is not valid") from None
        if link.expires_at <= now:
            raise NotFound("this link has expired")
        return link

    def _verifies(self, content: str, signature: str) -> bool:
        return any(hmac.compare_digest(_signature(key, content), signature) for key in self._ring().keys.values())


def _signature(key: bytes, content: str) -> str:
    own = hmac.digest(key, _PURPOSE, hashlib.sha256)
    return _base64(hmac.digest(own, content.encode(), hashlib.sha256))


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")

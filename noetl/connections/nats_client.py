"""The NATS client, which also receives messages whose subject or headers cannot be decoded.

Anyone who can publish to a subject can send such a message, and NATS delivers it. The library stops reading at it: the
connection receives nothing until its pings have remained unanswered. Imported where a connection is opened, since the
library is optional.
"""

from __future__ import annotations

from typing import Any

from nats.aio.client import Client


class NatsClient(Client):
    """Bytes of a subject that are not UTF-8 become U+FFFD; a message with an unreadable status line has no headers."""

    def _build_message(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: Any) -> Any:
        return super()._build_message(sid, _utf_8(subject), _utf_8(reply), data, headers)

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        try:
            return await super()._process_headers(headers)
        except (ValueError, IndexError) as problem:
            await self._error_cb(problem)  # what the library does about headers that it cannot read
            return None


def _utf_8(data: bytes) -> bytes:
    return bytes(data).decode(errors="replace").encode()

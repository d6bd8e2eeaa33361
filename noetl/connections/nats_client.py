"""The NATS client of the library with two corrections. Imported where a connection is opened: the library is optional.

Anyone who can publish to a subject can send a message whose subject or headers cannot be decoded, and NATS delivers it.
The library stops reading at it: the connection receives nothing until its pings have remained unanswered.

`flush` of the library sends its ping before the commands that wait in the buffer, so that it also returns if the server
has none of them: a subscription that does not receive yet, a published message that is lost with the connection.
"""

from __future__ import annotations

from typing import Any

from nats.aio.client import DEFAULT_FLUSH_TIMEOUT, Client


class NatsClient(Client):
    """Bytes of a subject that are not UTF-8 become U+FFFD; a message with an unreadable status line has no headers.

    After `flush` the server has every command that was sent before."""

    async def flush(self, timeout: int = DEFAULT_FLUSH_TIMEOUT) -> None:
        """Send the buffered commands and wait until the server has read them."""
        if self._pending and self.is_connected and self._transport is not None:
            self._transport.writelines(self._pending)
            self._pending, self._pending_data_size = [], 0
        await super().flush(timeout)

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

"""A listener on the loopback addresses that records every connection."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class InternalListener:
    """Accepts connections on all addresses and answers every request with 200."""

    def __init__(self) -> None:
        self.connections: list[str] = []
        self._socket = socket.socket()
        self._socket.bind(("0.0.0.0", 0))
        self._socket.listen()
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> InternalListener:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(5)

    def _listen(self) -> None:
        while True:
            try:
                connection, address = self._socket.accept()
            except OSError:
                return
            with connection:
                self.connections.append(f"from {address[0]}")
                with suppress(OSError):
                    connection.recv(1000)
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")

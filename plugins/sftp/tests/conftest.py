"""A real SFTP server: that of asyncssh, in a thread, on a folder."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import asyncssh
import pytest

from noetl.testing import ToolHost

USER, PASSWORD = "partner", "pässword"


class _Login(asyncssh.SSHServer):
    def __init__(self, allowed) -> None:
        self._allowed = allowed

    def begin_auth(self, username: str) -> bool:
        return True

    def password_auth_supported(self) -> bool:
        return True

    def validate_password(self, username: str, password: str) -> bool:
        return (username, password) == (USER, PASSWORD)

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key) -> bool:
        return username == USER and key == self._allowed


class Server:
    """A running server and its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host_key = asyncssh.generate_private_key("ssh-ed25519")
        self.client_key = asyncssh.generate_private_key("ssh-ed25519")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._listener = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(20)
        self.port = self._listener.get_port()

    async def _listen(self):
        return await asyncssh.create_server(
            lambda: _Login(self.client_key.convert_to_public()),
            "127.0.0.1",
            0,
            server_host_keys=[self.host_key],
            sftp_factory=lambda channel: asyncssh.SFTPServer(channel, chroot=str(self.folder)),
            allow_scp=False,
        )

    @property
    def auth(self) -> dict:
        key = self.host_key.export_public_key().decode().strip()
        return {"host": "127.0.0.1", "port": self.port, "user": USER, "password": PASSWORD, "host_key": key}

    def stop(self) -> None:
        async def close() -> None:
            self._listener.close()
            await self._listener.wait_closed()

        asyncio.run_coroutine_threadsafe(close(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="session")
def running(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("sftp"))
    yield server
    server.stop()


@pytest.fixture
def server(running):
    import shutil

    for each in running.folder.iterdir():
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    return running


@pytest.fixture
def host(server, tmp_path) -> ToolHost:
    return ToolHost(credentials={"partner": server.auth}, folder=tmp_path)

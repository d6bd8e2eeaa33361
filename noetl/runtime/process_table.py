"""Server and workers as processes of this machine: who runs, since when, and where they write.

Each process has a file `NOETL_HOME/run/NAME.json` with its pid and the instant the kernel started it, so
that a pid that was given to somebody else meanwhile is not mistaken for ours.
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
from typing import NamedTuple

from msgspec import Struct

from noetl.errors import Conflict, RequestRefused, StoreUnavailable

STOP_SECONDS = 45.0
READY_SECONDS = 60.0


class ProcessEntry(Struct, frozen=True):
    """A process of this installation."""

    name: str
    pid: int
    born: str  # what the kernel says of its start
    log: str
    url: str = ""


class ProcessTable:
    """The processes of one `NOETL_HOME`."""

    def __init__(self, home: Path) -> None:
        self._run = home / "run"
        self._logs = home / "logs"

    def members(self, prefix: str = "") -> list[ProcessEntry]:
        """Those that are alive, by name; files of dead ones are removed."""
        return sorted(self._alive(prefix), key=lambda member: (len(member.name), member.name))

    def find(self, name: str) -> ProcessEntry | None:
        """The living process of a name."""
        return next((member for member in self._alive(name) if member.name == name), None)

    def start(
        self, name: str, arguments: list[str], environ: Mapping[str, str], url: str = "", keep: tuple[int, ...] = ()
    ) -> ProcessEntry:
        """Start a process in the background, in a session of its own, its words in a log file.

        `keep` are the descriptors that it inherits.
        """
        with self._alone():
            return self._start(name, arguments, environ, url, keep)

    def _start(
        self, name: str, arguments: list[str], environ: Mapping[str, str], url: str, keep: tuple[int, ...]
    ) -> ProcessEntry:
        if self.find(name) is not None:
            raise Conflict(f"{name} runs already; `noetl {name.partition('-')[0]} stop` stops it")
        try:
            self._run.mkdir(parents=True, exist_ok=True)
            log = self.log_of(name)
            with log.open("ab") as words:
                process = subprocess.Popen(
                    [sys.executable, "-m", "noetl.clictl", *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=words,
                    stderr=words,
                    env={**os.environ, **environ},
                    start_new_session=True,
                    pass_fds=keep,
                )
        except OSError as problem:
            raise RequestRefused(f"{name} cannot be started: {problem.filename}: {problem.strerror}") from None
        return self.enlist(name, process.pid, str(log), url)

    def join(self, name: str, url: str = "") -> ProcessEntry:
        """Write this process down under a name that no living one has."""
        with self._alone():
            running = self.find(name)
            if running is not None and running.pid != os.getpid():
                raise Conflict(f"{name} runs already (process {running.pid})")
            return self.enlist(name, os.getpid(), url=url)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Two commands at the same moment take turns, so that neither overlooks what the other starts."""
        try:
            self._run.mkdir(parents=True, exist_ok=True)
            lock = os.open(self._run / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as problem:
            raise RequestRefused(f"{self._run} cannot be written: {problem.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def enlist(self, name: str, pid: int, log: str = "", url: str = "") -> ProcessEntry:
        """Write down a process."""
        self._run.mkdir(parents=True, exist_ok=True)
        member = ProcessEntry(name, pid, _born(pid) or "", log, url)
        file = self._run / f"{name}.json"
        temporary = file.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps({key: getattr(member, key) for key in ProcessEntry.__struct_fields__}))
        temporary.replace(file)
        return member

    def stop(self, member: ProcessEntry, seconds: float = STOP_SECONDS, signum: int = signal.SIGTERM) -> bool:
        """Ask it to stop and wait; False when it had to be killed."""
        with suppress(ProcessLookupError):
            os.kill(member.pid, signum)
        deadline = time.monotonic() + seconds
        while _born(member.pid) == member.born:
            if time.monotonic() > deadline:
                with suppress(ProcessLookupError):
                    os.kill(member.pid, signal.SIGKILL)
                self._forget(member.name)
                return False
            time.sleep(0.02)
        self._forget(member.name)
        return True

    def log_of(self, name: str) -> Path:
        """Where a process of that name writes."""
        self._logs.mkdir(parents=True, exist_ok=True)
        return self._logs / f"{name}.log"

    def last_words(self, member: ProcessEntry, lines: int = 5) -> str:
        """The end of its log, for a process that died young."""
        try:
            return "\n".join(Path(member.log).read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""

    def is_alive(self, member: ProcessEntry) -> bool:
        """Whether it still runs."""
        return _born(member.pid) == member.born

    def _alive(self, prefix: str) -> Iterator[ProcessEntry]:
        if not self._run.is_dir():
            return
        for file in self._run.glob("*.json"):
            if not file.stem.startswith(prefix):
                continue
            try:
                member = ProcessEntry(**json.loads(file.read_text()))
            except (ValueError, TypeError, OSError):
                continue  # being replaced at this moment, or not ours
            if member.born and _born(member.pid) == member.born:
                yield member
            else:
                self._forget(member.name)

    def _forget(self, name: str) -> None:
        with suppress(PermissionError):  # who may only look leaves it there, and overlooks it again the next time
            (self._run / f"{name}.json").unlink(missing_ok=True)


def _born(pid: int) -> str | None:
    """When the kernel started this process; None when there is none (or it is only waiting to be buried)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] == "Z" else fields[19]
    except OSError:
        pass
    if sys.platform == "linux":
        return None
    answer = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return answer.stdout.strip() or None


def wait_ready(url: str, is_alive: Callable[[], bool]) -> None:
    """Wait until the server there is ready; StoreUnavailable when it does not become so."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and is_alive():
        if readiness(url).ready:
            return
        time.sleep(0.05)
    raise StoreUnavailable(f"the server at {url} did not become ready")


class Readiness(NamedTuple):
    """What a server says of itself."""

    ready: bool
    problems: list[str]
    warnings: list[str]


def readiness(url: str) -> Readiness:
    """Whether the server there makes progress, what is in its way, and what somebody else should do."""
    import http.client
    import urllib.error
    import urllib.request

    try:
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=5) as answer:
                document = json.load(answer)
        except urllib.error.HTTPError as refused:
            with refused:
                document = json.load(refused)
    except ValueError:
        return Readiness(False, ["it answers, but not as a NoETL server does"], [])
    except (OSError, http.client.HTTPException) as problem:
        return Readiness(False, [f"it does not answer: {getattr(problem, 'reason', problem)}"], [])
    if not isinstance(document, dict) or "ready" not in document:
        detail = document.get("detail") if isinstance(document, dict) else None
        return Readiness(False, [str(detail or "it answers, but not as a NoETL server does")], [])
    problems, warnings = ([str(each) for each in document.get(name, ())] for name in ("problems", "warnings"))
    return Readiness(bool(document["ready"]), problems, warnings)

"""G3: an acknowledgement leaves the server after the flush, as the kernel saw it.

The server runs under strace; requests come one at a time and nobody else writes. So whenever `202` is sent, the
write-ahead log must have been written for it, and flushed after the last write.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from chaos.findings import Finding
from chaos.solo import submit
from tests.server.http.serving import Cluster

PLAYBOOK = (
    "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: flush, path: chaos/flush}\n"
    "workflow: [{step: a, tool: {kind: noop}}]\n"
)
WRITES = "pwrite64,write,writev,sendto,sendmsg,fdatasync,fsync,sync_file_range"
_CALL = re.compile(r"^(\d+)\s+(\w+)\((\d+)<([^>]*)>(.*)$")
_RESUMED = re.compile(r"^(\d+)\s+<\.\.\. (\w+) resumed>(.*)$")
_AHEAD = re.compile(r'^, "(?:\\0)+"\.\.\., \d{5,}, ')  # zeros where the log will go on: nothing anybody was told of


def experiment(*, quick: bool) -> Finding:
    """Count the acknowledgements that were sent before their flush."""
    requests = 200 if quick else 5_000
    target = "0 of 5,000 acknowledgements before the flush"
    if shutil.which("strace") is None:
        return Finding("flush", "G3", target, "Not measured: there is no `strace` here.", missed=["not measured"])
    with tempfile.TemporaryDirectory(prefix="noetl-chaos-") as folder:
        traced, trace = Traced(Path(folder)), Path(folder) / "trace"
        try:
            traced.start_traced(trace)
            began = time.monotonic()
            for _ in range(requests):
                submit(traced, PLAYBOOK)
            seconds = time.monotonic() - began
        finally:
            traced.stop()
        with trace.open(errors="replace") as lines:
            acknowledged, early, flushes = judge_calls(lines)
    broken = [f"{early} acknowledgements were sent before the flush"] if early else []
    if acknowledged < requests:
        broken.append(f"only {acknowledged} of {requests} acknowledgements were seen")
    return Finding(
        part="flush",
        guarantee="G3",
        target=target,
        did=f"One server on SQLite under `strace`; {requests:,} requests, one after the other.",
        figures={
            "acknowledgements": f"{acknowledged:,}",
            "sent before the flush": str(early),
            "flushes": f"{flushes:,}",
            "requests under strace": f"{requests / seconds:,.0f} a second",
        },
        broken=broken,
    )


def judge_calls(lines: Iterable[str]) -> tuple[int, int, int]:
    """Acknowledgements, those before their flush, and flushes, of a trace with paths (`strace -f -y`)."""
    acknowledged = early = flushes = 0
    dirty = written = False
    pending: dict[str, str] = {}  # thread -> a flush that has begun
    for line in lines:
        call = _CALL.match(line)
        if call is not None:
            thread, name, _, path, rest = call.groups()
            if path.endswith("-wal"):
                if name in ("fdatasync", "fsync"):
                    if "<unfinished" in rest:
                        pending[thread] = name
                    else:
                        dirty, flushes = False, flushes + 1
                elif "write" in name and not _AHEAD.match(rest):
                    dirty = written = True
            elif "HTTP/1.1 202" in rest:
                acknowledged += 1
                early += dirty or not written
                written = False
        elif (resumed := _RESUMED.match(line)) is not None and pending.pop(resumed[1], None):
            dirty, flushes = False, flushes + 1
    return acknowledged, early, flushes


class Traced(Cluster):
    """A server whose system calls are written down."""

    trace: Path | None = None

    def start_traced(self, trace: Path) -> None:
        """Start it under strace, and wait until it is ready."""
        self.trace = trace
        self.start_server()

    def _python(self, code: str, *others: Any) -> subprocess.Popen[bytes]:
        # -D: the tracer stands beside it, so the process we start, signal and wait for is the server itself.
        strace = ["strace", "-D", "-f", "-y", "-s", "32", "-e", f"trace={WRITES}", "-o", str(self.trace)]
        return subprocess.Popen([*strace, sys.executable, "-c", code], env=self.environ)

"""G3: the server sends an acknowledgement after the flush, verified by a trace of system calls.

The server runs under strace. Requests are sent one at a time, and there are no other writers. When a `202` is sent,
the write-ahead log must have been written for it, and flushed after the last write.
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
from chaos.single_server import submit
from tests.server.http.serving import Cluster

PLAYBOOK = (
    "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: flush, path: chaos/flush}\n"
    "workflow: [{step: a, tool: {kind: noop}}]\n"
)
WRITES = "pwrite64,write,writev,sendto,sendmsg,fdatasync,fsync,sync_file_range"
_CALL = re.compile(r"^(\d+)\s+(\w+)\((\d+)<([^>]*)>(.*)$")
_RESUMED = re.compile(r"^(\d+)\s+<\.\.\. (\w+) resumed>(.*)$")
_AHEAD = re.compile(r'^, "(?:\\0)+"\.\.\., \d{5,}, ')  # preallocated zeros: nothing that was acknowledged


def experiment(*, quick: bool) -> Finding:
    """Count acknowledgements that are sent before their flush."""
    requests = 200 if quick else 5_000
    target = "0 of 5,000 acknowledgements before the flush"
    if shutil.which("strace") is None:
        return Finding("flush", "G3", target, "Not measured: `strace` is not installed.", missed=["not measured"])
    with tempfile.TemporaryDirectory(prefix="noetl-chaos-") as folder:
        traced, trace = TracedServer(Path(folder)), Path(folder) / "trace"
        try:
            traced.start_with_trace(trace)
            began = time.monotonic()
            for _ in range(requests):
                submit(traced, PLAYBOOK)
            seconds = time.monotonic() - began
        finally:
            traced.stop()
        with trace.open(errors="replace") as lines:
            acknowledged, early, flushes = check_calls(lines)
    violations = [f"{early} acknowledgements were sent before the flush"] if early else []
    if acknowledged < requests:
        violations.append(f"only {acknowledged} of {requests} acknowledgements are in the trace")
    return Finding(
        part="flush",
        guarantee="G3",
        target=target,
        setup=f"One server on SQLite under `strace`; {requests:,} requests in sequence.",
        figures={
            "acknowledgements": f"{acknowledged:,}",
            "sent before the flush": str(early),
            "flushes": f"{flushes:,}",
            "requests under strace": f"{requests / seconds:,.0f} per second",
        },
        violations=violations,
    )


def check_calls(lines: Iterable[str]) -> tuple[int, int, int]:
    """Count acknowledgements, acknowledgements before their flush, and flushes in a trace (`strace -f -y`)."""
    acknowledged = early = flushes = 0
    dirty = written = False
    pending: dict[str, str] = {}  # thread -> flush in progress
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


class TracedServer(Cluster):
    """A server that runs under strace."""

    trace: Path | None = None

    def start_with_trace(self, trace: Path) -> None:
        """Start the server under strace and wait until it is ready."""
        self.trace = trace
        self.start_server()

    def _python(self, code: str, *others: Any) -> subprocess.Popen[bytes]:
        # -D: the tracer is a separate process, so that the started process is the server itself.
        strace = ["strace", "-D", "-f", "-y", "-s", "32", "-e", f"trace={WRITES}", "-o", str(self.trace)]
        return subprocess.Popen([*strace, sys.executable, "-c", code], env=self.environ)

"""SQL of users over a database file, executed by a process of its own (`noetl.data.query_child`).

A statement that needs too much memory or time, or crashes the database, ends that process and not the caller. The next
request starts a new one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec

from noetl.data.query_child import Limits, Reply, Request
from noetl.errors import RequestRefused

GRACE = 5.0  # seconds for a query to end by itself after its time
ROOT = str(Path(__file__).parents[2])


class QueryFailed(RequestRefused):
    """The statement is not allowed, wrong, or needs too much."""


class QueryProcess:
    """Executes requests over the tables of a folder; for one thread at a time."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self._folder, self._limits = folder, limits
        self._process: subprocess.Popen[bytes] | None = None

    def execute(self, request: Request) -> Any:
        """The result of a request; QueryFailed if there is none."""
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            process.kill()

        timer = threading.Timer(self._limits.seconds + GRACE, expire)
        timer.daemon = True
        timer.start()
        try:
            process.stdin.write(msgspec.json.encode(request) + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = b""
        finally:
            timer.cancel()
        if not line.endswith(b"\n"):
            self.close()
            if expired.is_set():
                raise QueryFailed(f"the query was stopped after {self._limits.seconds:g} s")
            raise QueryFailed(
                f"the query ended its process, which has {self._limits.memory} of memory: select fewer rows or columns"
            )
        reply = msgspec.json.decode(line, type=Reply)
        if reply.failed:
            raise QueryFailed(reply.failed)
        return msgspec.json.decode(reply.result)

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _start(self) -> subprocess.Popen[bytes]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("NOETL_")}
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, [ROOT, environ.get("PYTHONPATH")]))
        self._process = process = subprocess.Popen(
            [sys.executable, "-P", "-m", "noetl.data.query_child", str(self._folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environ, cwd=self._folder,
        )  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(self._limits) + b"\n")
        return process

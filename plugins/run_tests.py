"""Runs the tests of one plug-in in an environment of its own: `python plugins/run_tests.py NAME [pytest arguments]`.

The environment is `.venv-plugins/NAME`, with noetl in editable mode, the plug-in and its extra `test`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PLUGINS = Path(__file__).resolve().parent
ROOT = PLUGINS.parent


def environment(name: str) -> Path:
    """The Python interpreter of the plug-in's environment; installs what has changed since the last time."""
    folder = ROOT / ".venv-plugins" / name
    python, mark = folder / "bin" / "python", folder / ".ready"
    declared = [ROOT / "pyproject.toml", ROOT / "requirements.lock", PLUGINS / name / "pyproject.toml"]
    wanted = "\n".join(path.read_text() for path in declared)
    if mark.exists() and mark.read_text() == wanted:
        return python
    print(f"setting up {folder.relative_to(ROOT)} ...", file=sys.stderr)
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    uv = shutil.which("uv", path=os.path.dirname(sys.executable)) or shutil.which("uv")
    if uv:
        install = [uv, "pip", "install", "-q", "--python", str(python)]
    else:
        install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    packages = ["-e", str(ROOT), "-e", f"{PLUGINS / name}[test]"]
    subprocess.run([*install, "-c", str(_constraints(folder)), *packages], check=True)
    mark.write_text(wanted)
    return python


def _constraints(folder: Path) -> Path:
    """The locked versions of noetl's own dependencies, without hashes: the plug-in's are not locked."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    locked = [line.rstrip(" \\") for line in lines if line and not line.startswith((" ", "#"))]
    path = folder / "constraints.txt"
    path.write_text("\n".join(locked) + "\n")
    return path


def main(name: str, *arguments: str) -> int:
    """Run the tests; returns the exit status of pytest."""
    if not (PLUGINS / name / "pyproject.toml").is_file():
        known = ", ".join(sorted(path.parent.name for path in PLUGINS.glob("*/pyproject.toml")))
        print(f"there is no plug-in {name!r}; plug-ins: {known}", file=sys.stderr)
        return 2
    python = environment(name)
    folder = PLUGINS / name
    options = ["-q", "-c", str(PLUGINS / "pytest.ini"), "--rootdir", str(folder), "--confcutdir", str(PLUGINS)]
    command = [str(python), "-m", "pytest", *options, str(folder / "tests"), *arguments]
    return subprocess.run(command, cwd=folder).returncode


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python plugins/run_tests.py NAME [pytest arguments]")
    sys.exit(main(*sys.argv[1:]))

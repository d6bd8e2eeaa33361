"""A virtual environment with the built wheel and exactly the packages of its plain install.

The packages are links to those of the environment that runs the tests, so nothing is downloaded; a package that the
wheel does not require is absent, as it is for a user.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]


def closure(names: list[str]) -> set[str]:
    """The distributions that the given requirements need on this platform, in all."""
    found: set[str] = set()
    waiting = [(Requirement(text), "") for text in names]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = requirement.name.lower().replace("_", "-")
        fresh = {f"{name}[{each}]" for each in ("", *requirement.extras)} - found
        found |= fresh
        for each in fresh:
            inner = each[len(name) + 1 : -1]
            waiting += [(Requirement(text), inner) for text in metadata.requires(name) or []]
    return {each.partition("[")[0] for each in found}


def build_wheel(folder: Path) -> Path:
    """The wheel of this checkout."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: Path, folder: Path, *also: str) -> Path:
    """Create the environment, also with these packages, and return its folder of commands."""
    venv.create(folder, with_pip=True)
    bin = folder / "bin"
    python = bin / "python"
    pip = [python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel]
    subprocess.run(pip, check=True, capture_output=True)
    script = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(subprocess.run([python, "-c", script], check=True, capture_output=True, text=True).stdout.strip())
    (info,) = packages.glob("noetl_engine-*.dist-info")
    for name in closure([*(metadata.PathDistribution(info).requires or []), *also]):
        distribution = metadata.distribution(name)
        for file in distribution.files or ():
            link = packages / file
            if file.parts[0] != ".." and "__pycache__" not in file.parts and not link.exists():
                link.parent.mkdir(parents=True, exist_ok=True)
                os.symlink(Path(str(distribution.locate_file(file))), link)
    return bin

"""The built wheel with every supported Python of this machine, installed by pip; `make test-pythons` (it downloads packages)."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from plain_install import ROOT, build_wheel

VERSIONS = ("3.11", "3.12", "3.13", "3.14")

pytestmark = pytest.mark.skipif(not os.environ.get("NOETL_PYTHONS"), reason="downloads packages; see make test-pythons")


def interpreter(version: str) -> str | None:
    """The path of a Python of this version: on the PATH, of pyenv, or of uv."""
    home = Path.home()
    candidates = [
        shutil.which(f"python{version}"),
        *sorted(glob.glob(f"{home}/.pyenv/versions/{version}.*/bin/python"), reverse=True),
        *sorted(glob.glob(f"{home}/.local/share/uv/python/cpython-{version}.*/bin/python3"), reverse=True),
    ]
    for found in filter(None, candidates):
        told = subprocess.run(
            [found, "-c", "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"], capture_output=True
        )
        if told.stdout.decode().strip() == version:
            return found
    return None


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("version", VERSIONS)
def test_the_wheel_works(version: str, wheel: Path, tmp_path: Path):
    python = interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version} on this machine")
    script = Path(__file__).with_name("check_install.py")
    done = subprocess.run(
        [python, str(script), str(wheel), str(ROOT / "examples"), str(tmp_path / "install")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]

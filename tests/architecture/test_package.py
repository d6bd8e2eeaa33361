"""What people install has everything in it that it needs, and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import noetl

ROOT = Path(__file__).resolve().parents[2]
INFO = f"noetl_engine-{noetl.__version__}.dist-info"


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the wheel and the source archive of this tree."""
    folder = tmp_path_factory.mktemp("dist")
    code = "import sys; from hatchling import build; build.build_wheel(sys.argv[1]); build.build_sdist(sys.argv[1])"
    ran = subprocess.run([sys.executable, "-c", code, str(folder)], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built):
    (file,) = built.glob("*.whl")
    with zipfile.ZipFile(file) as archive:
        yield archive


def test_the_wheel_has_every_file_of_the_package(wheel):
    ours = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "noetl").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts and not file.name.startswith(".")
    }
    assert ours - set(wheel.namelist()) == set()
    assert "noetl/py.typed" in wheel.namelist()


def test_the_wheel_explains_every_diagnostic(wheel):
    from noetl.core.language.diagnostic_codes import CODES

    assert {f"noetl/manual/{code}.md" for code in CODES} - set(wheel.namelist()) == set()


def test_the_wheel_has_nothing_but_the_package(wheel):
    assert {name.split("/")[0] for name in wheel.namelist()} == {"noetl", INFO}
    assert not [name for name in wheel.namelist() if "__pycache__" in name or name.endswith((".db", ".log"))]


def test_the_wheel_brings_the_command_the_licence_and_the_extras(wheel):
    assert "noetl = noetl.clictl:main" in wheel.read(f"{INFO}/entry_points.txt").decode()
    assert "MIT License" in wheel.read(f"{INFO}/licenses/LICENSE").decode()
    metadata = wheel.read(f"{INFO}/METADATA").decode()
    extras = set(re.findall(r"^Provides-Extra: (\S+)", metadata, re.MULTILINE))
    assert {"otel", "aws", "gcp", "azure", "dev"} <= extras
    assert re.search(r"^Requires-Python: >=3\.11", metadata, re.MULTILINE)


def test_the_source_archive_can_be_tested_and_run(built):
    (file,) = built.glob("*.tar.gz")
    with tarfile.open(file) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for needed in (
        "noetl/clictl.py",
        "tests/conftest.py",
        "examples/quickstart/playbook.yaml",
        "Makefile",
        "README.md",
    ):
        assert needed in names
    assert not [name for name in names if "/build/" in name or name.endswith((".duckdb", ".parquet"))]


def test_the_locks_have_hashes_and_no_addresses():
    for name in ("requirements.lock", "requirements-dev.lock"):
        text = (ROOT / name).read_text()
        assert "://" not in text
        assert "index-url" not in text
        blocks = [block for block in re.split(r"\n(?=[^\s#])", text.strip()) if not block.startswith("#")]
        assert len(blocks) > 5
        for block in blocks:
            assert "--hash=sha256:" in block, block.splitlines()[0]


def test_the_locks_pin_every_declared_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [entry for entries in project["optional-dependencies"].values() for entry in entries]
    for name, requirements in (
        ("requirements.lock", project["dependencies"]),
        ("requirements-dev.lock", [*project["dependencies"], *extras]),
    ):
        text = (ROOT / name).read_text().lower()
        for requirement in requirements:
            package = re.match(r"[A-Za-z0-9_.-]+", requirement)[0].lower()
            assert package == "noetl-engine" or re.search(
                rf"^{re.escape(package)}(\[[^\]]*\])?==", text, re.MULTILINE
            ), package

"""Class "parsers": malformed input gives the errors of its parser and nothing else; dependencies are listed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.security.fuzz_parsers import TARGETS, fuzz

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", TARGETS)
def test_parsers_refuse_malformed_input_in_words(name):
    fuzz(name, 400)


def test_the_sbom_lists_every_locked_dependency():
    spec = importlib.util.spec_from_file_location("sbom", ROOT / "deploy" / "sbom.py")
    assert spec is not None and spec.loader is not None
    sbom = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sbom)
    lock = (ROOT / "requirements.lock").read_text()
    made = sbom.document(lock)
    assert made["bomFormat"] == "CycloneDX"
    assert len(made["components"]) == sum("==" in line and not line.startswith(" ") for line in lock.splitlines())
    assert all(each["hashes"] and each["purl"].startswith("pkg:pypi/") for each in made["components"])

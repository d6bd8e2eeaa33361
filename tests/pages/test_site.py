"""The documentation site builds without a warning, and its parts are there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = mkdocs("build", "--site-dir", str(folder))
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return folder


def mkdocs(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", *words]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1", **more}
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=110)


def test_every_section_is_in_the_navigation(site: Path):
    home = (site / "index.html").read_text()
    for page in ("tutorial", "howto/index", "cookbook/index", "reference/index", "explanation/index", "comparison/index", "glossary", "decisions/index"):  # fmt: skip
        assert f'href="{page}.html"' in home, page


def test_the_search_index_has_the_pages(site: Path):
    found = {entry["location"] for entry in json.loads((site / "search" / "search_index.json").read_text())["docs"]}
    assert {"tutorial.html", "howto/backfill.html", "cookbook/saga.html", "comparison/temporal.html"} <= found


def test_the_pages_load_nothing_from_other_hosts(site: Path):
    loaded = re.compile(r'<(?:script|link|img)[^>]*(?:src|href)="?(https?:)?//[^">]*', re.IGNORECASE)
    for page in site.rglob("*.html"):
        assert not [found[0] for found in loaded.finditer(page.read_text()) if 'rel="canonical"' not in found[0]], page


def test_fences_with_words_are_code(site: Path):
    """`yaml invalid` is a word for the tests: on the page it is a code block like others."""
    assert "```" not in re.sub(r"<code>.*?</code>", "", (site / "tutorial.html").read_text(), flags=re.DOTALL)


def test_linked_files_outside_the_pages_are_part_of_the_site(site: Path):
    assert (site / "source" / "CONTRIBUTING.md.txt").exists()
    assert 'href="../source/examples/ci/playbooks.yml.txt"' in (site / "howto" / "test-a-playbook.html").read_text()


def test_a_page_that_no_index_lists_fails_the_build(tmp_path: Path):
    import shutil

    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("reference", "images", "cookbook"))
    (tmp_path / "docs" / "howto" / "orphan.md").write_text("# Orphan\n")
    for missing in ("reference", "cookbook"):
        (tmp_path / "docs" / missing).mkdir()
        (tmp_path / "docs" / missing / "index.md").write_text("# Empty\n")
    (tmp_path / "mkdocs.yml").write_text((ROOT / "mkdocs.yml").read_text())
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert built.returncode != 0
    assert "howto/orphan.md" in built.stderr


def test_versions_of_the_site_are_kept_side_by_side(tmp_path: Path):
    """`make docs-publish` commits the site of a version to a branch; `latest` leads to the newest."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Page\n")
    (tmp_path / "mkdocs.yml").write_text("site_name: x\nplugins: [search, mike]\n")
    identity = [f"GIT_{role}_{part}" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")]
    environ = {**os.environ, **dict.fromkeys(identity, "docs@example.com"), "NO_MKDOCS_2_WARNING": "1"}
    environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for command in (
        ["git", "init", "-q", "."],
        ["git", "commit", "-q", "--allow-empty", "-m", "Begin"],
        ["mike", "deploy", "--update-aliases", "0.1", "latest"],
        ["mike", "deploy", "--update-aliases", "0.2", "latest"],
    ):
        subprocess.run(command, cwd=tmp_path, env=environ, check=True, capture_output=True)
    shown = subprocess.run(
        ["git", "show", "gh-pages:versions.json"], cwd=tmp_path, capture_output=True, text=True
    ).stdout
    assert [(one["version"], one["aliases"]) for one in json.loads(shown)] == [("0.2", ["latest"]), ("0.1", [])]

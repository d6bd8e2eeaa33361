"""Every playbook of the cookbook runs and has the output of its page."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from docs.generate.cookbook_pages import COOKBOOK, Recipe, index, page, picture, recipes
from tests.smtp import smtp_server

ALL = [recipe for members in recipes().values() for recipe in members]


@pytest.fixture
def settings(request: pytest.FixtureRequest, api, monkeypatch: pytest.MonkeyPatch):
    """The values of `--set` for what a playbook needs."""
    stack = []

    def values(recipe: Recipe) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for need in recipe.entry.get("needs", ()):
            if need == "api":
                found["api"] = api("cookbook")
            elif need == "postgres":
                found["database"] = request.getfixturevalue("database")
            elif need == "nats":
                found["nats"] = request.getfixturevalue("nats_server")
            elif need == "smtp":
                server = smtp_server()
                stack.append(server)
                inbox = server.__enter__()
                found["smtp"] = {"host": "127.0.0.1", "port": inbox.port, "tls": "none", "from": "noetl@example.com"}
            else:
                assert need == "secret"
                monkeypatch.setenv("COOKBOOK_API_KEY", "very-secret-1")
        return found

    yield values
    for server in stack:
        server.__exit__(None, None, None)


@pytest.mark.parametrize("recipe", ALL, ids=lambda recipe: recipe.name)
def test_a_playbook_gives_the_output_of_its_page(noetl, folder: Path, settings, recipe: Recipe):
    shutil.copytree(COOKBOOK, folder / "cookbook")
    changes = [f"--set={name}={json.dumps(value)}" for name, value in settings(recipe).items()]
    answer = noetl("run", folder / "cookbook" / recipe.file, "--json", *changes)
    assert "warning" not in answer.err
    entry = recipe.entry
    if "error" in entry:
        assert answer.code == 1, answer.err
        assert entry["error"] in answer.json["error"]["message"]
        assert entry.get("ctx", {}).items() <= answer.json["ctx"].items()
    else:
        assert answer.code == 0, answer.err
        data = answer.json["output"]["data"]
        assert (data[entry["select"]] if "select" in entry else data) == entry["output"]


def test_the_cookbook_is_complete():
    assert len(ALL) >= 30
    assert {recipe.file for recipe in ALL} == {
        file.relative_to(COOKBOOK).as_posix() for file in COOKBOOK.rglob("*.yaml") if "build" not in file.parts
    }
    assert len({recipe.name for recipe in ALL}) == len(ALL)


def test_the_pages_are_up_to_date():
    folder = Path(COOKBOOK.parents[1]) / "docs" / "cookbook"
    expected = {"index.md": index(recipes())}
    for recipe in ALL:
        expected |= {f"{recipe.name}.md": page(recipe), f"{recipe.name}.svg": picture(recipe)}
    assert {file.name: file.read_text() for file in folder.iterdir()} == expected, "run `make docs`"


def test_a_picture_is_what_the_command_draws(noetl):
    drawn = noetl("graph", COOKBOOK / "flow" / "parallel_branches.yaml", "--format", "svg").out
    assert drawn == picture(next(recipe for recipe in ALL if recipe.name == "parallel_branches"))

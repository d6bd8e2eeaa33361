"""`noetl new`: a project from a template that runs at once."""

from __future__ import annotations

import re
import tomllib
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import click

from noetl.cli.output.terminal import output_options, terminal
from noetl.errors import Conflict, RequestRefused
from noetl.settings import similar

DEFAULT = "basic"
DESCRIPTION = "template.toml"
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,99}")
PROJECT_TOML = """\
[project]
name = "{name}"
# Files that playbooks name travel with them. Files that only templates name have to be listed:
# include = ["data/*.csv"]

# noetl apply --profile prod
# [profile.prod]
# server = "https://noetl.example"
# workload = {{ }}
# credentials = {{ }}
"""
README = """\
# {name}

{description}.

    noetl validate .        # check the playbooks
    noetl test              # run their tests
    {run}
    noetl dev               # server, workers and web page; files are registered again when they change
    noetl apply             # register the project in the catalog, or on a server with --server URL
"""


@click.command()
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--template", metavar="NAME", default=DEFAULT, show_default=True, help="What the project starts with.")
@click.option("--list", "show", is_flag=True, help="List the templates.")
@output_options
def new(name: str | None, template: str, show: bool) -> None:
    """Create a project in the folder NAME.

    It has a playbook with tests and runs without changes. `noetl new --list` lists the templates.
    """
    known = {each.name: each for each in _templates()}
    if show or name is None:
        terminal.table(("template", "creates"), [(each, _about(known[each])["description"]) for each in sorted(known)])
        if name is None and not show:
            terminal.note("noetl new NAME --template TEMPLATE creates a project")
        return
    if template not in known:
        advice = similar(template, list(known), f"; the templates are {', '.join(sorted(known))}")
        raise RequestRefused(f"there is no template {template!r}{advice}")
    root = Path(name)
    if not NAME.fullmatch(root.name):
        raise click.BadParameter(f"{root.name!r} is not a valid name: use letters, digits, _ and -", param_hint="NAME")
    if root.exists() and any(root.iterdir()):
        raise Conflict(f"{root} exists and is not empty")
    about = _about(known[template])
    _copy(known[template], root, root.name)
    (root / "noetl.toml").write_text(PROJECT_TOML.format(name=root.name))
    (root / ".gitignore").write_text("*.duckdb\n*.db\n*.parquet\nrejected.csv\n.env\n")
    run = "\n    ".join(about["run"])
    description = f"{about['description'][:1].upper()}{about['description'][1:]}"
    (root / "README.md").write_text(README.format(name=root.name, description=description, run=run))
    terminal.note(f"{root} is created; try:")
    for command in (f"cd {root}", *about["run"], "noetl test"):
        terminal.data(command)


def _templates() -> list[Traversable]:
    folder = files("noetl.cli.projects") / "templates"
    return [each for each in folder.iterdir() if (each / DESCRIPTION).is_file()]


def _about(template: Traversable) -> dict[str, Any]:
    return tomllib.loads((template / DESCRIPTION).read_text(encoding="utf-8"))


def _copy(source: Traversable, target: Path, project: str) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for each in source.iterdir():
        if each.name in (DESCRIPTION, "__pycache__"):
            continue
        if each.is_dir():
            _copy(each, target / each.name, project)
        else:
            text = each.read_text(encoding="utf-8")
            (target / each.name).write_text(text.replace("PROJECT", project), encoding="utf-8")

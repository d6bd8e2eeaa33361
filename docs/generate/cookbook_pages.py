"""The pages of the cookbook: text, picture of the net, playbook and output of every playbook in examples/cookbook."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from noetl.core.language.compile import compile_playbook
from noetl.core.language.editor.graph_svg import as_svg
from noetl.core.language.editor.net_document import net_document
from noetl.tools import registry as tools

COOKBOOK = Path(__file__).resolve().parents[2] / "examples" / "cookbook"
NEEDS = {
    "api": "python examples/cookbook/api.py --port 8765 &",
    "postgres": 'noetl credential set warehouse --type postgres --data \'{"dsn": "postgresql://..."}\'',
    "nats": "nats-server -js &",
    "smtp": 'noetl credential set smtp --type smtp --data \'{"host": "mail.example.com", "from": "a@example.com"}\'',
    "secret": "export COOKBOOK_API_KEY=very-secret-1",
}


class Recipe(NamedTuple):
    """One playbook of the cookbook."""

    file: str
    title: str
    text: str
    source: str
    entry: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of its page."""
        return Path(self.file).stem


def recipes() -> dict[str, list[Recipe]]:
    """The playbooks by section."""
    index = yaml.safe_load((COOKBOOK / "cookbook.yml").read_text(encoding="utf-8"))
    return {part["section"]: [recipe(entry) for entry in part["playbooks"]] for part in index}


def recipe(entry: dict[str, Any]) -> Recipe:
    """A playbook with the title and the text of its leading comment."""
    lines = (COOKBOOK / entry["file"]).read_text(encoding="utf-8").splitlines(keepends=True)
    head = [line[1:].strip() for line in lines[: next(i for i, line in enumerate(lines) if not line.startswith("#"))]]
    return Recipe(entry["file"], head[0], "\n".join(head[2:]), "".join(lines[len(head) :]), entry)


def picture(recipe: Recipe) -> str:
    """The net, as `noetl graph --format svg` draws it."""
    compilation = compile_playbook(recipe.source, file=recipe.file, specs=tools.specs())
    assert compilation.playbook is not None, recipe.file
    return as_svg(net_document(compilation.playbook))


def page(recipe: Recipe) -> str:
    """The page of one playbook."""
    entry = recipe.entry
    commands = [NEEDS[need] for need in entry.get("needs", ())] + [f"noetl run examples/cookbook/{recipe.file}"]
    shown = [f"$ {command}" for command in commands]
    if "error" in entry:
        ending = [f"The execution fails: `{entry['error']}`."]
        ending += [f"`ctx` is then `{json.dumps(entry['ctx'])}`."] if "ctx" in entry else []
    else:
        ending = ["Output:" if "select" not in entry else f"`{entry['select']}` of the output:", "", "```json"]
        ending += [json.dumps(entry["output"], ensure_ascii=False), "```"]
    return "\n".join(
        [
            f"# {recipe.title}",
            "",
            recipe.text,
            "",
            f"![The net of {recipe.name}]({recipe.name}.svg)",
            "",
            f'```yaml title="{recipe.file}"',
            recipe.source.rstrip("\n"),
            "```",
            "",
            "```console",
            *shown,
            "```",
            "",
            *ending,
            "",
        ]
    )


def index(found: dict[str, list[Recipe]]) -> str:
    """The index of the cookbook."""
    lines = [
        "# Cookbook",
        "",
        f"{sum(map(len, found.values()))} playbooks that run as they are, each with the picture of its net. They are",
        "in `examples/cookbook`, and a test runs every one of them. Playbooks that call an API use the one of",
        "`examples/cookbook/api.py`.",
        "",
    ]
    for section, members in found.items():
        lines += [f"## {section}", "", *(f"- [{one.title}]({one.name}.md)" for one in members), ""]
    return "\n".join(lines)


def write_cookbook(folder: Path) -> None:
    """Write all pages and pictures, and delete those of playbooks that no longer exist."""
    folder.mkdir(exist_ok=True)
    found = recipes()
    files = {"index.md": index(found)}
    for one in (recipe for members in found.values() for recipe in members):
        files |= {f"{one.name}.md": page(one), f"{one.name}.svg": picture(one)}
    for old in folder.iterdir():
        if old.name not in files:
            old.unlink()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")

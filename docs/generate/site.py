"""Hooks of mkdocs: navigation, links to files outside docs/, state diagrams, and words after the language of a fence.

The navigation follows the index pages. An index lists its section once: its headings or lead lines are groups, its
links are the pages. A page that no index links is missing in the navigation, which is a warning and fails the build.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\(([^)#\s:]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^( *```)([\w-]+)((?: +[^\n`]*)?)$", re.MULTILINE)
TITLE = re.compile(r'title="[^"]*"')
GROUP = re.compile(r"^(?:## +)?([A-Z][^|\n\[\]:.]*)$")
DIAGRAM = re.compile(r"^```mermaid\nstateDiagram-v2\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TRANSITION = re.compile(r"(\S+) --> (\S+)(?: : (.*))?")
SOURCES = "source"  # folder of the site with the files outside docs/ that pages link to
SECTIONS = (
    ("Tutorial", "tutorial.md"),
    ("How-to", "howto/index.md"),
    ("Cookbook", "cookbook/index.md"),
    ("Reference", "reference/index.md"),
    ("Explanation", "explanation/index.md"),
    ("Comparison", "comparison/index.md"),
    ("Glossary", "glossary.md"),
    ("Decisions", "decisions/index.md"),
    ("Development", "development/index.md"),
)


def on_config(config: Any) -> Any:
    """The navigation: one tab per section."""
    docs = Path(config["docs_dir"])
    config["nav"] = [{"NoETL": "index.md"}, *({title: section(docs, page)} for title, page in SECTIONS)]
    return config


def section(docs: Path, index: str) -> str | list[Any]:
    """The pages that an index page lists, in its order and groups; an index that it lists is a section of its own."""
    if not index.endswith("index.md"):
        return index
    folder = posixpath.dirname(index)
    entries: list[Any] = [index]
    group = entries
    seen = {index}
    for line in (docs / index).read_text(encoding="utf-8").splitlines()[1:]:
        if found := GROUP.match(line.strip()):
            group = []
            entries.append({found[1]: group})
        for target, _anchor in LINK.findall(line):
            page = posixpath.normpath(posixpath.join(folder, target))
            if page.endswith(".md") and not page.startswith("..") and page not in seen and is_own(page, folder):
                seen.add(page)
                title = heading(docs / page)
                group.append({title: section(docs, page)} if page.endswith("index.md") else {title: page})
    return [entry for entry in entries if not (isinstance(entry, dict) and not next(iter(entry.values())))]


def is_own(page: str, folder: str) -> bool:
    """Whether a linked page belongs to the section: it is below its folder, or a page that only its index lists."""
    return page.startswith(folder + "/") or (folder, page) in FOREIGN


FOREIGN = {
    ("howto", "runbooks/index.md"),
    ("explanation", "reliability.md"),
    ("explanation", "benchmarks.md"),
}


def heading(page: Path) -> str:
    """The title of a page as the navigation shows it."""
    first = next(line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("# "))
    return first[2:].replace("`", "")


def on_files(files: Any, config: Any) -> Any:
    """Add the linked files outside docs/, as text that a browser shows."""
    from mkdocs.structure.files import File

    for path in sorted(outside(Path(config["docs_dir"]))):
        content = (ROOT / path).read_text(encoding="utf-8")
        files.append(File.generated(config, f"{SOURCES}/{path}.txt", content=content))
    return files


def outside(docs: Path) -> set[str]:
    """Paths, relative to the repository, of files outside docs/ that pages link to."""
    found = set()
    for page in docs.rglob("*.md"):
        for target, _anchor in LINK.findall(page.read_text(encoding="utf-8")):
            file = (page.parent / target).resolve()
            if file.is_file() and not file.is_relative_to(docs.resolve()) and file.is_relative_to(ROOT):
                found.add(file.relative_to(ROOT).as_posix())
    return found


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links to files outside docs/ lead to their copies; of the words after a language only the title stays."""
    source = Path(config["docs_dir"]) / page.file.src_path

    def link(match: re.Match[str]) -> str:
        file = (source.parent / match[1]).resolve()
        if not file.is_file() or file.is_relative_to(Path(config["docs_dir"]).resolve()):
            return match[0]
        below = posixpath.relpath(
            f"{SOURCES}/{file.relative_to(ROOT).as_posix()}.txt", posixpath.dirname(page.file.src_path) or "."
        )
        return f"]({below})"

    def fence(match: re.Match[str]) -> str:
        title = TITLE.search(match[3])
        return f"{match[1]}{match[2]}{' ' + title[0] if title else ''}"

    return FENCE.sub(fence, LINK.sub(link, DIAGRAM.sub(state_diagram, markdown)))


def state_diagram(match: re.Match[str]) -> str:
    """A state diagram as a picture, drawn like the net of a playbook whose steps are the states, and as a table."""
    from noetl.core.language.compile import compile_playbook
    from noetl.core.language.editor.graph_svg import as_svg
    from noetl.core.language.editor.net_document import net_document
    from noetl.tools import registry as tools

    transitions = TRANSITION.findall(match[1])
    entry = next(target for source, target, _ in transitions if source == "[*]")
    names = dict.fromkeys(name for source, target, _ in transitions for name in (source, target) if name != "[*]")
    steps = [
        {
            "step": name,
            "next": {"arcs": [{"step": end} for begin, end, _ in transitions if begin == name and end in names]},
        }
        for name in (entry, *(name for name in names if name != entry))
    ]
    head = {"apiVersion": "noetl.io/v2", "kind": "Playbook", "metadata": {"name": "states"}}
    text = json.dumps(
        {**head, "workflow": [step if step["next"]["arcs"] else {"step": step["step"]} for step in steps]}
    )
    playbook = compile_playbook(text, file="states.yaml", specs=tools.specs()).playbook
    assert playbook is not None
    picture = as_svg(net_document(playbook))
    rows = [f"| `{source}` | `{target}` | {label} |" for source, target, label in transitions]
    table = "\n".join(["| from | to | events |", "|---|---|---|", *rows])
    return f"{picture}\n{table}\n".replace("`[*]`", "")

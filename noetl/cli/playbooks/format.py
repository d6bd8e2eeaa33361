"""`noetl fmt` and `noetl migrate`: commands that rewrite playbooks."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import click

from noetl.cli.app import FAILED, INVALID, USAGE
from noetl.cli.output.terminal import output_options, terminal
from noetl.cli.playbook_files import CannotRead, read_bounded
from noetl.errors import RequestRefused


def read_yaml(name: str) -> tuple[str | None, Any]:
    """The text of a playbook; None, after printing the problems, if it is not YAML."""
    from noetl.core.language.diagnostics import Findings
    from noetl.core.language.source.yaml_source import MAX_BYTES, read_source

    content = read_bounded(name, MAX_BYTES)
    source = read_source(content)
    if source.root is None or source.problems:
        findings = Findings("<stdin>" if name == "-" else name, source.text)
        for problem in source.problems:
            findings.add(*problem)
        terminal.diagnostics(findings.result(), content)
        return None, content
    return content.decode("utf-8-sig"), content


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--check", is_flag=True, help="Write nothing; print the names of files that would change and exit with 1."
)
@output_options
def fmt(files: tuple[str, ...], check: bool) -> int:
    """Format playbooks in place (- is stdin to stdout).

    Indentation by two, flat `set` targets, `name:` tasks, no trailing white space. Comments, blank lines, the order
    of keys and the meaning do not change. Exit code 0; 1 if --check found a file to format; 3 if a file is not
    YAML; 2 if it could not be read.
    """
    from noetl.core.language.rewrite.format import format_text
    from noetl.tools import registry as tools

    specs = tools.specs()
    code = 0
    for name in files:
        try:
            text, content = read_yaml(name)
        except CannotRead as problem:
            terminal.error(str(problem))
            code = USAGE
            continue
        if text is None:
            code = code or INVALID
            continue
        formatted = format_text(text, specs)
        changed = formatted.encode() != content
        if name == "-" and not check:
            terminal.document(formatted)
        elif changed and check:
            terminal.data(name)
            code = code or FAILED
        elif changed:
            try:
                write(name, formatted)
            except CannotWrite as problem:
                terminal.error(str(problem))
                code = USAGE
                continue
            terminal.note(f"formatted {name}")
    return code


class CannotWrite(RequestRefused):
    """A file cannot be written."""


def write(name: str, text: str) -> None:
    """Replace the text of a file atomically; its permissions stay, and a link stays a link."""
    from tempfile import NamedTemporaryFile

    path = Path(name).resolve()
    temporary: Path | None = None
    try:
        with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = Path(file.name)
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(stat.S_IMODE(path.stat().st_mode))
        temporary.replace(path)
    except OSError as problem:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise CannotWrite(f"{name}: cannot be written: {problem.strerror or problem}; it was not changed") from None


@click.command()
@click.argument("file", metavar="FILE")
@click.option("--write", "in_place", is_flag=True, help="Write the file instead of stdout.")
@click.option("--diff", is_flag=True, help="Print the changes as a unified diff.")
@output_options
def migrate(file: str, in_place: bool, diff: bool) -> int:
    """Translate a playbook of v10 or 2025-11 (- is stdin) into the canonical dialect; comments and order are kept.

    The new text is written to stdout. It is formatted and means the same: it is compiled and compared with the source
    before it is written. Parts that cannot be translated exactly stay, are marked with a comment and listed with their
    lines on stderr. A playbook whose translation would mean something else is not changed. Exit code 0 if everything
    was translated (canonical text does not change), 1 if something was not, 3 if the playbook has errors, 2 if the
    file could not be read or written.
    """
    from difflib import unified_diff

    from noetl.core.language.compile import compile_playbook
    from noetl.core.language.rewrite.migrate.to_canonical import migrate as to_canonical
    from noetl.tools import registry as tools

    if in_place and file == "-":
        raise RequestRefused("--write requires a file: stdin cannot be written")
    text, content = read_yaml(file)
    if text is None:
        return INVALID
    name = "<stdin>" if file == "-" else file
    specs = tools.specs()
    found = compile_playbook(text, file=name, specs=specs, legacy=True).diagnostics
    errors = [one for one in found if one.severity == "error"]
    if errors:
        terminal.diagnostics(errors, content)
        return INVALID
    made = to_canonical(text, specs)
    if diff:
        lines = unified_diff(text.splitlines(True), made.text.splitlines(True), name, name)
        complete = (line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
        terminal.document("".join(complete))
    elif not in_place:
        terminal.document(made.text)
    if in_place and made.text != text:
        write(file, made.text)
        terminal.note(f"migrated {file}")
    for note in made.notes:
        terminal.warn(f"{name}:{note.line}: {note.message}")
    return FAILED if made.notes else 0

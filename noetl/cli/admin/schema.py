"""`noetl schema`: the registry of result schemas, and the JSON Schema of playbooks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from noetl.cli.output.terminal import json_options, output_options, terminal
from noetl.cli.target import Target, key_option, with_target

name_argument = click.argument("name", metavar="NAME[/vN]")


@click.group(invoke_without_command=True)
@click.pass_context
@output_options
def schema(context: click.Context) -> None:
    """Register and show schemas of results; without a subcommand, print the JSON Schema of playbooks.

    The latter includes every installed tool kind. For editors with JSON Schema support: `noetl schema >
    playbook.schema.json`, and as the first line of a playbook: # yaml-language-server:
    $schema=playbook.schema.json
    """
    if context.invoked_subcommand is not None:
        return
    from noetl.core.language.reference.json_schema import json_schema
    from noetl.tools.registry import specs

    terminal.json(json_schema(specs()))


@schema.command()
@click.argument("name", metavar="NAME")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--compatible",
    type=click.Choice(["backward", "none"]),
    default="backward",
    show_default=True,
    help="Whether the new version must accept everything that the newest version accepts.",
)
@key_option
@with_target
@json_options
def register(name: str, file: Path, compatible: str, target: Target, as_json: bool) -> None:
    """Register a JSON Schema (JSON or YAML) as a new version of NAME.

    The same schema again is the same version. Playbooks refer to it by `spec.validation` or `output.schema`.

    Example: noetl schema register orders orders.schema.json
    """
    found = target.call(lambda backend: backend.register_schema(name, _read(file), compatible))
    if as_json:
        terminal.json(found)
    else:
        terminal.data(f"{found['name']}/v{found['version']}")


@schema.command("list")
@with_target
@json_options
def list_(target: Target, as_json: bool) -> None:
    """List the newest version of every schema."""
    found = target.call(lambda backend: backend.schemas())
    if as_json:
        terminal.json(found)
    elif found:
        rows = [(each["name"], each["version"], each["compatible"], each["digest"][:12]) for each in found]
        terminal.table(("name", "version", "compatible", "digest"), rows)
    else:
        terminal.note("no schemas; `noetl schema register NAME FILE` registers one")


@schema.command()
@name_argument
@with_target
@json_options
def show(name: str, target: Target, as_json: bool) -> None:
    """Show a version of a schema, or the newest one."""
    found = target.call(lambda backend: backend.schema(name))
    terminal.json(found if as_json else found["schema"])


def _read(file: Path) -> dict[str, Any]:
    from noetl.cli.playbook_files import read_bounded
    from noetl.core.language.source.nodes import data_of
    from noetl.core.language.source.yaml_source import MAX_BYTES, read_source

    source = read_source(read_bounded(str(file), MAX_BYTES))
    if source.root is None or source.problems:
        reason = source.problems[0][2] if source.problems else "it is empty"
        raise click.UsageError(f"{file} is neither JSON nor YAML: {reason}")
    document = data_of(source.root)
    if not isinstance(document, dict):
        raise click.UsageError(f"{file} is not a JSON Schema: it must be a mapping")
    return document

"""`noetl state`: the values that executions of a playbook share."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click
import msgspec

from noetl.cli.output.terminal import json_options, terminal
from noetl.cli.target import Target, key_option, with_target
from noetl.errors import NotFound
from noetl.settings import similar

if TYPE_CHECKING:
    from noetl.cli.backend.base import Backend


@click.group()
def state() -> None:
    """Show and change the state that executions of a playbook share (`state.*`)."""


path_argument = click.argument("path", metavar="PATH")


@state.command()
@click.argument("path", metavar="[PATH]", required=False)
@with_target
@json_options
def show(path: str | None, target: Target, as_json: bool) -> None:
    """Show the state of a playbook; without PATH, list the playbooks that have state.

    PATH is the playbook's `metadata.path`, or its name.

    Example: noetl state show loads/orders
    """
    if path is None:
        _list(target, as_json)
        return

    async def read(backend: Backend) -> dict[str, Any]:
        found = await backend.state_of(path)
        if not found["entries"]:
            await _warn_if_misspelt(backend, path)
        return found

    found = target.call(read)
    if as_json:
        terminal.json(found)
    elif found["entries"]:
        rows = [
            (each["key"], _short(each["value"]), each["updated_at"], each["execution_id"] or "user")
            for each in found["entries"]
        ]
        terminal.table(("key", "value", "updated", "by"), rows)
    else:
        terminal.note(f"{path} has no state; executions write it by `set: {{state.<key>: ...}}`")


async def _warn_if_misspelt(backend: Backend, path: str) -> None:
    """Warn if a path has no state and is similar to that of another playbook; others may be run from files."""
    with suppress(NotFound):
        await backend.playbook(path)
        return
    known = {each["path"] for each in await backend.states()} | {each.path for each in await backend.playbooks()}
    if path not in known and (meant := similar(path, sorted(known))):
        terminal.warn(f"there is no playbook {path!r} in the catalog{meant}")


def _short(value: Any) -> str:
    text = msgspec.json.encode(_with_short_texts(value)).decode()
    return text if len(text) <= 80 else f"{text[:77]}..."


def _with_short_texts(value: Any) -> Any:
    """The value with the beginnings of long texts, so that what is beside them can be seen."""
    if isinstance(value, dict):
        return {key: _with_short_texts(each) for key, each in value.items()}
    return f"{value[:9]}..." if isinstance(value, str) and len(value) > 40 else value


def _list(target: Target, as_json: bool) -> None:
    found = target.call(lambda backend: backend.states())
    if as_json:
        terminal.json(found)
    elif found:
        rows = [(each["path"], each["keys"], each["bytes"], each["updated_at"]) for each in found]
        terminal.table(("path", "keys", "bytes", "updated"), rows)
    else:
        terminal.note("no playbook has state")


@state.command("set")
@path_argument
@click.argument("values", metavar="KEY=VALUE...", nargs=-1, required=True)
@key_option
@with_target
@json_options
def set_(path: str, values: tuple[str, ...], target: Target, as_json: bool) -> None:
    """Set keys of the state of a playbook.

    VALUE is a YAML scalar, or a list or mapping in brackets; `a.b=1` sets `b` inside the value of `a`. An execution
    that has read a changed key before fails with `state.conflict` when it commits it.

    Example: noetl state set loads/orders cursor=2026-01-01
    """
    from noetl.cli.inputs import read_assignments

    changes = read_assignments(values, "KEY=VALUE")

    async def write(backend: Backend) -> dict[str, Any]:
        await _warn_if_misspelt(backend, path)
        return await backend.set_state(path, changes)

    found = target.call(write)
    if as_json:
        terminal.json(found)
    else:
        terminal.note(f"{path}: set {', '.join(changes)}")


@state.command()
@path_argument
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@key_option
@with_target
def reset(path: str, keys: tuple[str, ...], target: Target) -> None:
    """Remove the state of a playbook, or some of its keys; `a.b` removes `b` inside the value of `a`.

    The next execution starts without it, for example with the initial value of a cursor.

    Example: noetl state reset loads/orders cursor
    """
    target.call(lambda backend: backend.reset_state(path, keys))
    terminal.note(f"{path}: removed {', '.join(keys) if keys else 'all state'}")

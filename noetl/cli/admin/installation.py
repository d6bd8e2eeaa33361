"""Commands about this installation: settings, shell completion, checks."""

from __future__ import annotations

import click

from noetl.cli.output.terminal import json_options, terminal
from noetl.cli.target import Target, load_settings, with_target


@click.group()
def config() -> None:
    """Show the settings."""


@config.command()
@click.option("--origin", is_flag=True, help="Print the origin of each value.")
@json_options
def show(origin: bool, as_json: bool) -> None:
    """Print every setting with its value.

    The value is taken from the first of: an option, NOETL_* in the environment, .env, ./noetl.toml,
    the user's config.toml, the default.
    """
    from noetl.settings import TABLE, without_password

    loaded = load_settings()
    values = {setting: getattr(loaded.settings, setting.attribute) for setting in TABLE}
    for setting, value in values.items():
        if setting.secret and value:
            values[setting] = "(set)"
        elif isinstance(value, str):
            values[setting] = without_password(value)
    if as_json:
        terminal.json(
            {
                setting.name: {"value": value, "origin": loaded.origins[setting.attribute]} if origin else value
                for setting, value in values.items()
            }
        )
        return
    rows = [
        (setting.name, value, *([loaded.origins[setting.attribute]] if origin else []), setting.doc)
        for setting, value in values.items()
    ]
    terminal.table(("setting", "value", *(["origin"] if origin else []), "what it is"), rows)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL.

    In ~/.bashrc: eval "$(noetl completion bash)". In ~/.zshrc: eval "$(noetl completion zsh)".
    For fish: noetl completion fish > ~/.config/fish/completions/noetl.fish
    """
    from click.shell_completion import get_completion_class

    from noetl.cli.app import noetl

    writer = get_completion_class(shell)
    assert writer is not None
    terminal.data(writer(noetl, {}, "noetl", "_NOETL_COMPLETE").source())


@click.command()
@click.option("--verify", is_flag=True, help="Check every table, index, text, log and stored result (slow).")
@click.option("--repair", is_flag=True, help="Rebuild indexes and the summaries that do not match their logs.")
@with_target
@json_options
def doctor(verify: bool, repair: bool, target: Target, as_json: bool) -> int:
    """Check this installation.

    Checks settings, data folder, secrets, store, results, tools, NATS, server and workers. Exit code 0 if there are
    no failures (warnings are allowed), otherwise 1.
    """
    from noetl.cli.doctor.checks import run_checks
    from noetl.cli.doctor.findings import FAILED

    flags = {"server_url": target.server, "token": target.token, "store": target.store}
    found = run_checks(flags, verify=verify, repair=repair)
    if as_json:
        terminal.json([{"check": one.name, "status": one.status, "detail": one.detail} for one in found])
    else:
        styles = {"ok": "green", "warning": "yellow", "failed": "red"}
        terminal.table(("check", "status", "detail"), found, styles=styles)
    return 1 if any(one.status == FAILED for one in found) else 0

"""Verbs about this installation: its settings, its health."""

from __future__ import annotations

import click

from noetl.commands.terminal import as_json, talk, terminal


@click.group()
def config() -> None:
    """Show the settings."""


@config.command()
@click.option("--origin", is_flag=True, help="Say where each value comes from.")
@as_json
@talk
def show(origin: bool, as_json: bool) -> None:
    """Print every setting with its value.

    A value comes from the first place that has it: a flag, NOETL_* in the environment, .env,
    ./noetl.toml, the user's config.toml, the default.
    """
    from noetl.settings import TABLE, load

    loaded = load()
    for warning in loaded.warnings:
        terminal.warn(warning)
    values = {
        setting: "(set)"
        if setting.secret and getattr(loaded.settings, setting.attribute)
        else getattr(loaded.settings, setting.attribute)
        for setting in TABLE
    }
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

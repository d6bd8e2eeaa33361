"""Other names of subcommands: the words of the web page and of other groups work everywhere."""

from __future__ import annotations

import click

SYNONYMS = (("add", "create"), ("remove", "delete", "revoke"), ("edit", "change"))


class AliasedGroup(click.Group):
    """Accepts synonyms of its commands (`delete` for `remove`) without listing them."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name or of a synonym."""
        names = next((each for each in SYNONYMS if cmd_name in each), ())
        for name in (cmd_name, *names):
            if (command := super().get_command(ctx, name)) is not None:
                return command
        return None

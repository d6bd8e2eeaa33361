"""Options that several commands of projects share; cheap to import."""

from __future__ import annotations

import click

profile_option = click.option("--profile", metavar="NAME", help="Values of [profile.NAME] in noetl.toml.")

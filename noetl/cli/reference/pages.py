"""The reference pages of the command line and of the settings, written from the code they describe.

    python -m noetl.cli.reference.pages docs/reference

writes cli.md, api.md, settings.md, metrics.md, grammar.md and tools/*.md; tests compare them with what lies there.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import click

from noetl.cli.app import VERBS, noetl
from noetl.cli.reference.api_page import api_page
from noetl.cli.reference.tool_pages import write_tool_pages
from noetl.core.language.reference.grammar_page import grammar_page
from noetl.observability import metrics
from noetl.settings import TABLE

EXIT_CODES = """\
| exit code | meaning |
|---|---|
| 0 | done |
| 1 | the execution failed |
| 2 | usage: an unknown option, a file that cannot be read, an id or name that does not exist |
| 3 | the playbook is invalid; nothing ran |
| 4 | cannot connect: the server or the store is out of reach, or the server does not let this token in |
| 124 | `--timeout` ran out; the execution was cancelled |
| 130 | interrupted; the execution was cancelled (one on a server goes on) |
"""


def command_page() -> str:
    """cli.md."""
    parts = [
        "# The command line",
        "",
        "Data goes to stdout, everything else to stderr. `--json` prints one document (one a line where it streams).",
        "A live display is drawn only on a terminal; elsewhere progress is a line per change. `--quiet` says only",
        "errors, `-v` says more, `NO_COLOR` switches colours off. Where an execution's ID is asked for, `last` is the",
        "newest one. A command never exits with 0 when something did not run.",
        "",
        EXIT_CODES,
    ]
    with click.Context(noetl, info_name="noetl") as root:
        for name in VERBS:
            command = noetl.get_command(root, name)
            assert command is not None
            parts += _section(command, click.Context(command, info_name=name, parent=root))
    return "\n".join(parts).rstrip() + "\n"


def _section(command: click.Command, ctx: click.Context) -> list[str]:
    if isinstance(command, click.Group):
        lines = []
        for name in command.list_commands(ctx):
            inner = command.get_command(ctx, name)
            assert inner is not None
            lines += _section(inner, click.Context(inner, info_name=name, parent=ctx))
        return lines
    arguments = " ".join(p.make_metavar(ctx) for p in command.params if isinstance(p, click.Argument))
    lines = [
        f"## `{ctx.command_path}{' ' + arguments if arguments else ''}`",
        "",
        inspect.cleandoc(command.help or ""),
        "",
    ]
    records = [p.get_help_record(ctx) for p in command.params if isinstance(p, click.Option)]
    if records:
        rows = [f"| `{_cell(record[0])}` | {_cell(record[1])} |" for record in records if record is not None]
        lines += ["| option | |", "|---|---|", *rows, ""]
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("  ", " ")


def settings_page() -> str:
    """settings.md."""
    rows = [
        f"| `{setting.name}` | `{setting.variable}` | {setting.doc} | {_default(setting.name)} |" for setting in TABLE
    ]
    return "\n".join(
        [
            "# Settings",
            "",
            "A value comes from the first place that has it: a flag of the command, `NOETL_*` in the environment, a",
            "`.env` file in the working folder, `noetl.toml` there, `config.toml` in the user's config folder, the",
            "default. `noetl config show --origin` shows every value and where it comes from. A dotted name is a table",
            "in the TOML files: `server.url` is `url` below `[server]`. A key that is no setting is a warning naming",
            "the nearest one; a value that cannot be used is an error that names the place.",
            "",
            "| setting | environment | what it is | default |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def metrics_page() -> str:
    """metrics.md."""
    rows = [
        f"| `{metric.name}` | {metric.kind} | {', '.join(f'`{label}`' for label in metric.labels)} | {metric.help} |"
        for metric in metrics.TABLE.values()
    ]
    return "\n".join(
        [
            "# Metrics",
            "",
            "`GET /metrics` returns the Prometheus text format; it requires the role viewer. Counters are of this",
            "server process since its start; add up the servers of a cluster. Labels have few values: never an",
            "execution, a playbook or a worker. How to monitor a server: [Observe a server](../howto/observe.md).",
            "",
            "| metric | kind | labels | what it says |",
            "|---|---|---|---|",
            *rows,
            "",
            "`GET /api/operations` has the same as JSON for the web page: executions by status, pools with what waits",
            "and who works, and a sample every ten seconds of the last hour.",
            "",
        ]
    )


def _default(name: str) -> str:
    """A default in words that hold on every machine."""
    known = {"home": "HOME"}
    for setting in TABLE:
        if setting.name == name:
            value = setting.default(known, {"HOME": "~"})
            if name == "home":
                return "the platform's data folder"
            return "none" if value is None else f"`{value}`"
    raise KeyError(name)


def main(folder: Path) -> None:
    """Write the pages."""
    (folder / "cli.md").write_text(command_page(), encoding="utf-8")
    (folder / "settings.md").write_text(settings_page(), encoding="utf-8")
    (folder / "api.md").write_text(api_page(), encoding="utf-8")
    (folder / "metrics.md").write_text(metrics_page(), encoding="utf-8")
    (folder / "grammar.md").write_text(grammar_page(), encoding="utf-8")
    write_tool_pages(folder / "tools")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

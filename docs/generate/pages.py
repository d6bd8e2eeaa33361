"""The reference pages that are generated: cli, api, settings, metrics, grammar, tools/*, and the cookbook."""

from __future__ import annotations

import inspect
from pathlib import Path

import click

from docs.generate.api_page import api_page
from docs.generate.attack_page import attack_suite
from docs.generate.cookbook_pages import write_cookbook
from docs.generate.language_rules_page import language_rules_page
from docs.generate.messages_page import messages_page
from docs.generate.seed_audit_page import seed_audit_page
from docs.generate.tool_pages import write_tool_pages
from noetl.cli.app import COMMANDS, noetl
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
| 4 | cannot connect: the server or the store is unreachable, or the server rejects the token or its role |
| 124 | `--timeout` expired; the execution was cancelled |
| 130 | interrupted; the execution was cancelled (an execution on a server continues) |
"""


def command_page() -> str:
    """cli.md."""
    parts = [
        "# The command line",
        "",
        "Data goes to stdout, everything else to stderr. `--json` prints one document (one a line where it streams).",
        "Live progress is drawn only on a terminal; elsewhere it is one line per change. `--quiet` prints only",
        "errors, `-v` prints more, `NO_COLOR` turns colors off. Where a command takes the ID of an execution, `last`",
        "is the newest one. A command never exits with 0 when something did not run.",
        "",
        EXIT_CODES,
    ]
    with click.Context(noetl, info_name="noetl") as root:
        for name in COMMANDS:
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
            "The value of a setting is taken from the first of: a flag of the command, `NOETL_*` in the environment, a",
            "`.env` file in the working folder, `noetl.toml` in the working folder, `config.toml` in the user's config",
            "folder, the default. `noetl config show --origin` prints every value and its origin. A dotted name is a",
            "table in the TOML files: `server.url` is `url` below `[server]`. An unknown key is a warning that",
            "suggests the nearest setting; an invalid value is an error that names its origin.",
            "",
            "| setting | environment | description | default |",
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
            "| metric | kind | labels | description |",
            "|---|---|---|---|",
            *rows,
            "",
            "`GET /api/operations` has the same data as JSON for the web page: executions by status, pools with their",
            "waiting runs and workers, and a sample every ten seconds of the last hour.",
            "",
        ]
    )


def _default(name: str) -> str:
    """A default in a form that is the same on every machine."""
    known = {"home": "HOME"}
    for setting in TABLE:
        if setting.name == name:
            value = setting.default_value(known, {"HOME": "~"})
            if name == "home":
                return "the platform's data folder"
            return "none" if value is None else f"`{value}`"
    raise KeyError(name)


def write_pages(folder: Path) -> None:
    """Write all pages."""
    (folder / "cli.md").write_text(command_page(), encoding="utf-8")
    (folder / "settings.md").write_text(settings_page(), encoding="utf-8")
    (folder / "api.md").write_text(api_page(), encoding="utf-8")
    (folder / "metrics.md").write_text(metrics_page(), encoding="utf-8")
    (folder / "messages.md").write_text(messages_page(), encoding="utf-8")
    (folder / "grammar.md").write_text(grammar_page(), encoding="utf-8")
    (folder / "seed-audit.md").write_text(seed_audit_page(), encoding="utf-8")
    (folder / "language-rules.md").write_text(language_rules_page(), encoding="utf-8")
    (folder / "attack-suite.md").write_text(attack_suite(), encoding="utf-8")
    write_tool_pages(folder / "tools")
    write_cookbook(folder.parent / "cookbook")

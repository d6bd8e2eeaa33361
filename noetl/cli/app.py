"""The tree of verbs, and the one place where errors become words and exit codes."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from noetl import __version__
from noetl.cli.output.terminal import terminal
from noetl.errors import AccessRefused, InvalidPlaybook, NoetlError, RequestRefused, StoreUnavailable

FAILED, USAGE, INVALID, UNREACHABLE, TIMED_OUT, INTERRUPTED = 1, 2, 3, 4, 124, 130

# Verb -> file of this folder and the name in it. In the order of the help page.
VERBS: dict[str, str] = {
    "run": "run:run",
    "validate": "playbooks.validate:validate",
    "fmt": "playbooks.format:fmt",
    "migrate": "playbooks.format:migrate",
    "plan": "playbooks.graph:plan",
    "graph": "playbooks.graph:graph",
    "schema": "playbooks.validate:schema",
    "test": "playbooks.test:test",
    "executions": "executions.inspect:executions",
    "status": "executions.inspect:status",
    "events": "executions.inspect:events",
    "replay": "executions.inspect:replay",
    "why": "executions.inspect:why",
    "execute": "run:execute",
    "cancel": "executions.control:cancel",
    "pause": "executions.control:pause",
    "resume": "executions.control:resume",
    "signal": "executions.control:signal",
    "rerun": "run:rerun",
    "register": "playbooks.catalog:register",
    "catalog": "playbooks.catalog:catalog",
    "schedule": "admin.schedule:schedule",
    "webhook": "admin.webhook:webhook",
    "limit": "admin.limit:limit",
    "credential": "admin.credential:credential",
    "token": "admin.token:token",
    "server": "processes.lifecycle:server",
    "worker": "processes.lifecycle:worker",
    "dev": "processes.lifecycle:dev",
    "cluster": "processes.cluster:cluster",
    "retention": "executions.retention:retention",
    "config": "admin.installation:config",
    "doctor": "admin.installation:doctor",
    "completion": "admin.installation:completion",
}
# Other names of verbs; they work and are not listed.
ALIASES = {"lint": "validate"}


class LazyGroup(click.Group):
    """Commands that are imported when they are named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All verbs, in the order of the table."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb's file and take the command out of it."""
        address = VERBS.get(ALIASES.get(cmd_name, cmd_name))
        if address is None:
            return None
        module, _, name = address.partition(":")
        command: click.Command = getattr(import_module(f"noetl.cli.{module}"), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The verb that was named; for one that does not exist, the verb that was probably meant."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            from difflib import get_close_matches

            close = get_close_matches(name, [*VERBS, *ALIASES], n=1)
            hint = f'did you mean "{close[0]}"?' if close else "`noetl --help` lists them."
            raise click.UsageError(f'there is no command "{name}"; {hint}', ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, "-V", "--version", prog_name="noetl", message="%(prog)s %(version)s")
def noetl() -> None:
    """Run playbooks: declarative YAML workflows over APIs, databases and scripts.

    Data goes to stdout, everything else to stderr. Every command has --help.
    """


def run(words: Sequence[str]) -> int:
    """Run one command line; the exit code is the answer."""
    try:
        code = noetl.main(args=list(words), prog_name="noetl", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except Exception as problem:  # noqa: BLE001 - the last resort: whatever it is, a person gets a line of words
        return _explain(problem)
    except KeyboardInterrupt:
        terminal.error("interrupted")
        return INTERRUPTED


def _explain(problem: Exception) -> int:
    """Say what went wrong on stderr; the exit code tells its sort."""
    if isinstance(problem, click.exceptions.Abort):
        terminal.error("interrupted")
        return INTERRUPTED
    if isinstance(problem, OSError) and problem.errno == errno.EPIPE:
        # The reader of our output has left (`noetl events 7 | head`): nobody to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    if terminal.verbose:
        import traceback

        traceback.print_exception(problem, file=sys.stderr)
    if isinstance(problem, click.exceptions.NoArgsIsHelpError):
        sys.stderr.write(problem.format_message() + "\n")
        return USAGE
    if isinstance(problem, click.UsageError):
        usage = problem.ctx.command_path if problem.ctx else "noetl"
        terminal.error(f"{_sentence(problem.format_message())} (`{usage} --help` shows the usage)")
        return USAGE
    if isinstance(problem, click.ClickException):
        terminal.error(_sentence(problem.format_message()))
        return USAGE
    if isinstance(problem, InvalidPlaybook):
        terminal.diagnostics(problem.diagnostics)
        return INVALID
    if isinstance(problem, AccessRefused):
        terminal.error(str(problem))
        return UNREACHABLE
    if isinstance(problem, RequestRefused):
        terminal.error(str(problem))
        return USAGE
    if isinstance(problem, StoreUnavailable | ConnectionError):
        terminal.error(str(problem))
        return UNREACHABLE
    if isinstance(problem, NoetlError):
        terminal.error(str(problem))
        return FAILED
    if isinstance(problem, OSError) and problem.strerror:
        where = f"{problem.filename}: " if problem.filename else ""
        terminal.error(f"{where}{problem.strerror}")
        return FAILED
    more = "" if terminal.verbose else " (the same command with -v shows where)"
    terminal.error(f"internal error: {type(problem).__name__}: {problem}{more}")
    return FAILED


def _sentence(message: str) -> str:
    """click's message as the rest of a line: no capital, no full stop."""
    message = " ".join(message.split())
    return (message[:1].lower() + message[1:]).rstrip(".")


def options(*chosen: Any) -> Any:
    """Put several click decorators on a command, the first one shown first."""

    def decorate(function: Any) -> Any:
        for option in reversed(chosen):
            function = option(function)
        return function

    return decorate

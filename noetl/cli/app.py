"""The commands of `noetl`, and the one place where an exception becomes a message and an exit code."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import click

from noetl import __version__
from noetl.cli.output.terminal import terminal
from noetl.errors import AccessRefused, InvalidPlaybook, NoetlError, RequestRefused, StoreUnavailable
from noetl.runtime.printable import printable

FAILED, USAGE, INVALID, UNREACHABLE, TIMED_OUT, INTERRUPTED = 1, 2, 3, 4, 124, 130

# Command -> module of this package and the name in it, in the order of the help page.
COMMANDS: dict[str, str] = {
    "run": "run:run",
    "validate": "playbooks.validate:validate",
    "fmt": "playbooks.format:fmt",
    "migrate": "playbooks.format:migrate",
    "plan": "playbooks.graph:plan",
    "graph": "playbooks.graph:graph",
    "schema": "admin.schema:schema",
    "test": "playbooks.test:test",
    "lsp": "integrations.lsp:lsp",
    "mcp": "integrations.mcp:mcp",
    "executions": "executions.inspect:executions",
    "status": "executions.inspect:status",
    "events": "executions.inspect:events",
    "logs": "executions.logs:logs",
    "replay": "executions.inspect:replay",
    "why": "executions.inspect:why",
    "query": "executions.query:query",
    "execute": "run:execute",
    "cancel": "executions.control:cancel",
    "pause": "executions.control:pause",
    "resume": "executions.control:resume",
    "signal": "executions.control:signal",
    "inbox": "executions.inbox:inbox",
    "rerun": "executions.rerun:rerun",
    "fork": "executions.rerun:fork",
    "compare": "executions.rerun:compare",
    "backfill": "executions.backfill:backfill",
    "new": "projects.new:new",
    "apply": "projects.apply:apply",
    "diff": "projects.apply:diff",
    "register": "playbooks.catalog:register",
    "catalog": "playbooks.catalog:catalog",
    "schedule": "admin.schedule:schedule",
    "webhook": "admin.webhook:webhook",
    "trigger": "admin.trigger:trigger",
    "notify": "admin.notify:notify",
    "limit": "admin.limit:limit",
    "state": "admin.state:state",
    "credential": "admin.credential:credential",
    "token": "admin.token:token",
    "server": "processes.lifecycle:server",
    "worker": "processes.lifecycle:worker",
    "dev": "processes.dev:dev",
    "retention": "executions.retention:retention",
    "backup": "operations.backup:backup",
    "restore": "operations.backup:restore",
    "upgrade": "operations.upgrade:upgrade",
    "config": "admin.installation:config",
    "doctor": "admin.installation:doctor",
    "completion": "admin.installation:completion",
}
# Other names of commands; they work and are not listed.
ALIASES = {"lint": "validate", "init": "new"}
REMOVED = {"cluster": "`make cluster` in a checkout of the repository starts a local cluster"}
# Names that similar tools use for a command of ours.
ELSEWHERE = {
    "executions": ("list", "ls", "ps", "runs", "jobs", "history"),
    "status": ("describe", "show", "get", "inspect"),
    "execute": ("submit", "start", "launch"),
    "rerun": ("retry", "restart", "clear"),
    "cancel": ("stop", "kill", "terminate", "abort"),
    "signal": ("approve", "reject", "answer"),
    "why": ("explain",),
    "events": ("trace",),
    "logs": ("tail",),
    "dev": ("up", "standalone", "ui"),
    "server": ("serve", "api", "webserver", "scheduler"),
    "worker": ("agent", "executor"),
    "credential": ("secret", "secrets", "connection", "connections", "profile"),
    "catalog": ("playbook", "playbooks", "flow", "flows", "dag", "dags", "workflow", "workflows"),
    "apply": ("deploy", "sync"),
    "schedule": ("cron", "schedules"),
    "validate": ("check", "verify", "compile"),
    "fmt": ("format",),
    "new": ("create", "scaffold"),
    "upgrade": ("db", "migrations"),
    "retention": ("prune", "delete", "gc"),
}


class LazyGroup(click.Group):
    """Imports the module of a command when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a command and return the command."""
        address = COMMANDS.get(ALIASES.get(cmd_name, cmd_name))
        if address is None:
            return None
        module, _, name = address.partition(":")
        command: click.Command = getattr(import_module(f"noetl.cli.{module}"), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of a name; the error for an unknown name suggests a similar one."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            from difflib import get_close_matches

            close = [ours for ours, theirs in ELSEWHERE.items() if name in theirs]
            close = close or get_close_matches(name, [*COMMANDS, *ALIASES], n=1)
            hint = f'did you mean "{close[0]}"?' if close else "`noetl --help` lists all commands."
            hint = REMOVED.get(name, hint)
            raise click.UsageError(f'unknown command "{name}"; {hint}', ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, "-V", "--version", prog_name="noetl", message="%(prog)s %(version)s")
def noetl() -> None:
    """Run playbooks: declarative YAML workflows over APIs, databases and scripts.

    Data goes to stdout, everything else to stderr. Every command has --help.
    """


def run(arguments: Sequence[str], command: click.Command = noetl, name: str = "noetl") -> int:
    """Run one command line and return its exit code."""
    terminal.quiet, terminal.verbose = False, 0  # of this command line only
    try:
        code = command.main(args=list(arguments), prog_name=name, standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except Exception as problem:  # noqa: BLE001 - the last resort: every exception becomes one line of text
        return _report_error(problem)
    except KeyboardInterrupt:
        terminal.error("interrupted")
        return INTERRUPTED


# The exit code of an expected exception; the first class that matches counts.
EXIT_CODES: tuple[tuple[type[Exception] | tuple[type[Exception], ...], int], ...] = (
    ((AccessRefused, StoreUnavailable, ConnectionError), UNREACHABLE),
    (RequestRefused, USAGE),
    (NoetlError, FAILED),
)


def _report_error(problem: Exception) -> int:
    """Write the error to stderr and return the exit code for it."""
    if isinstance(problem, click.exceptions.Abort):
        terminal.error("interrupted")
        return INTERRUPTED
    if isinstance(problem, OSError) and problem.errno == errno.EPIPE:
        # The reader of stdout has closed it (`noetl events 7 | head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    if terminal.verbose:
        import traceback

        traceback.print_exception(problem, file=sys.stderr)
    if isinstance(problem, click.ClickException):
        return _report_usage(problem)
    if isinstance(problem, InvalidPlaybook):
        terminal.diagnostics(problem.diagnostics)
        return INVALID
    for kinds, code in EXIT_CODES:
        if isinstance(problem, kinds):
            terminal.error(str(problem))
            return code
    if isinstance(problem, OSError) and problem.strerror:
        from noetl.runtime.disk_errors import disk_error

        where = f"{problem.filename}: " if problem.filename else ""
        terminal.error(disk_error(problem) or f"{where}{problem.strerror}")
        return FAILED
    if isinstance(problem, ModuleNotFoundError) and problem.name:
        from noetl.runtime.requirements import missing_module

        advice = missing_module(problem.name)
        if advice is not None:
            terminal.error(advice)
            return FAILED
    more = "" if terminal.verbose else " (run the command with -v for a traceback)"
    terminal.error(f"internal error: {type(problem).__name__}: {problem}{more}")
    return FAILED


def _report_usage(problem: click.ClickException) -> int:
    if isinstance(problem, click.exceptions.NoArgsIsHelpError):
        sys.stderr.write(printable(problem.format_message()) + "\n")
    elif isinstance(problem, click.UsageError):
        usage = problem.ctx.command_path if problem.ctx else "noetl"
        terminal.error(f"{_sentence(problem.format_message())} (see `{usage} --help`)")
    else:
        terminal.error(_sentence(problem.format_message()))
    return USAGE


def _sentence(message: str) -> str:
    """A message of click without its capital and full stop."""
    message = " ".join(message.split())
    return (message[:1].lower() + message[1:]).rstrip(".")

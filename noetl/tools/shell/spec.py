"""Kind `shell`: run shell commands and scripts; template values are passed as data, never as syntax.

Each `{{ ... }}` in a command becomes a reference to an environment variable (`value_binding.py`).
A list is a program and its arguments, started without a shell.
"""

from __future__ import annotations

from noetl.core.model.outcome import Outcome
from noetl.core.model.tool import POSITIVE, Field, Members, ToolCall, ToolSpec, count, named_input
from noetl.tools._common.script_fields import SCRIPT_MEMBERS

LIMITS = {"memory_mb": ("v", 1024), "cpu_s": ("t", 1), "open_files": ("n", 1)}  # option of ulimit, scale

SPEC = ToolSpec(
    kind="shell",
    doc="Runs a shell command or script. `output.data` has `returncode`, `stdout` and `stderr`; a non-zero exit status "
    "is an error of kind `shell`. Template values cannot inject shell syntax: each is bound to an environment "
    "variable and expanded as one word. Output lines are written to the log while the command runs.",
    fields={
        "command": Field(
            "any",
            "A shell command, or a list: a program and its arguments, started without a shell. "
            "If the string is a single `{{ ... }}`, its value is a program with arguments, without shell syntax.",
            accepts=("string", "list"),
            aliases=("cmd",),
            bind=True,
        ),
        "commands": Field(
            "any",
            "Commands that run in sequence in one shell; the first failure stops it.",
            accepts=("string", "list"),
            aliases=("cmds",),
            bind=True,
            each=Field("any", "A command.", accepts=("string",)),
        ),
        "script": Field(
            "any",
            "A script: its text, or `{uri, source?}` (relative to the playbook, http, object store); "
            "a `#!` line selects the interpreter.",
            aliases=("code",),
            bind=True,
            members=SCRIPT_MEMBERS,
            files="members",
        ),
        "arguments": Field("list", "Positional arguments: `$1`, `$2`, ..."),
        "env": Field("mapping", "Environment variables. Only PATH, HOME, locale and similar variables are inherited."),
        "cwd": Field(
            "string", "Working directory. Default: the playbook's.", aliases=("workdir", "working_dir"), files=True
        ),
        "stdin": Field("any", "Standard input: a string; other values are encoded as JSON."),
        "shell": Field("string", "The shell. Default: bash if installed, otherwise sh.", aliases=("interpreter",)),
    },
    spec_keys={
        "timeout": "`total`: seconds after which the process group is stopped.",
        "limits": "`memory_mb`, `cpu_s`, `open_files` of the processes.",
        "kill_grace": "Seconds between SIGTERM and SIGKILL (1).",
        "max_output_bytes": "Maximum bytes of stdout and of stderr in the output, start and end of each (1 MiB).",
        "max_log_bytes": "Maximum bytes of output written to the log (1 MiB).",
        "inherit_env": "`true`, or a list of names: inherit more of the worker's environment.",
        "ok_codes": "Additional exit codes that count as success, e.g. [1] for grep.",
    },
    spec_fields={
        "limits": Field("mapping", "Limits of the processes.", members=Members(fields=dict.fromkeys(LIMITS, POSITIVE))),
        "kill_grace": Field("number", least=0),
        "max_output_bytes": count(least=0),
        "max_log_bytes": count(least=0),
        "inherit_env": Field("any", accepts=("boolean", "list"), each=Field("string", "The name of a variable.")),
        "ok_codes": Field("any", accepts=("integer", "list"), least=-255, most=255, each=count(least=-255, most=255)),
    },
    helpers={"sh": {"returncode": None, "signal": None}},
    aliases=("script", "bash"),
    open_fields=True,
    requires=(("command", "commands", "script"),),
    exclusive=(("command", "commands", "script"),),
    example='- name: pack\n  kind: shell\n  cmd: tar czf "{{ input.file }}" data\n'
    '  input:\n    file: "{{ workload.name }}.tgz"\n',
)


async def run(call: ToolCall) -> Outcome:
    """Run the command."""
    from noetl.tools.shell import task

    return await task.run(call, named_input(SPEC, call.input))

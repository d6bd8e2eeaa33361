"""Run shell commands and scripts: what templates yield reaches them as data, never as syntax.

The author's text is the program; each `{{ ... }}` in it becomes an environment variable that the text
refers to (`drivers/shell_binding.py`). A list is a program and its arguments, started without a shell.
"""

from __future__ import annotations

from noetl.core.model.outcome import Outcome
from noetl.core.model.tool import Field, ToolCall, ToolSpec, named_input

SPEC = ToolSpec(
    kind="shell",
    doc="Runs a shell command or script. `output.data` has `returncode`, `stdout`, `stderr`; a non-zero exit is an "
    "error of kind `shell`. Values of templates cannot inject shell syntax: each is bound to an environment "
    "variable and expanded as one word. Lines of output are log lines while the command runs.",
    fields={
        "command": Field(
            "any",
            "A command (any shell text), or a list: a program and its arguments, started without a shell. "
            "A text that is exactly one `{{ ... }}` is the command itself.",
            aliases=("cmd",),
            bind=True,
        ),
        "commands": Field(
            "any",
            "Commands that run one after the other in one shell; the first failure ends it.",
            aliases=("cmds",),
            bind=True,
        ),
        "script": Field(
            "any",
            "A script: its text, or `{uri, source?}` (beside the playbook, http, object store); "
            "a `#!` line chooses its interpreter.",
            aliases=("code",),
            bind=True,
        ),
        "arguments": Field("list", "Positional arguments: `$1`, `$2`, ..."),
        "env": Field("mapping", "Environment variables; otherwise only what finds programs and files is inherited."),
        "cwd": Field("string", "Working folder; default: the playbook's.", aliases=("workdir", "working_dir")),
        "stdin": Field("any", "Text for standard input; other values as JSON."),
        "shell": Field("string", "The shell to use: bash if there is one, else sh.", aliases=("interpreter",)),
    },
    spec_keys={
        "timeout": "Seconds after which the whole process group is ended (`total`).",
        "kill_grace": "Seconds between asking the group to end and making it (1).",
        "max_output_bytes": "Bytes kept of stdout and of stderr, each: their beginning and their end (1 MiB).",
        "max_log_bytes": "Bytes of output handed on as log lines (1 MiB).",
        "inherit_env": "`true`, or a list of names: more of the worker's own environment.",
        "ok_codes": "More exit codes that count as success, e.g. [1] for grep.",
    },
    helpers={"sh": {"returncode": None, "signal": None}},
    aliases=("script", "bash"),
    open_fields=True,
    example='- name: pack\n  kind: shell\n  cmd: tar czf "{{ input.file }}" data\n'
    '  input:\n    file: "{{ workload.name }}.tgz"\n',
)


async def run(call: ToolCall) -> Outcome:
    """Run the command once."""
    from noetl.tools.shell.task import perform

    return await perform(call, named_input(SPEC, call.input), SPEC)

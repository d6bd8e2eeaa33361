"""Kind `python`: run Python code in a warm process with limits, isolation and a timeout."""

from __future__ import annotations

from typing import Any

from noetl.core.model.outcome import Outcome
from noetl.core.model.tool import POSITIVE, Field, Members, ToolCall, ToolSpec, count
from noetl.tools._common.script_fields import SCRIPT_MEMBERS

MEMORY_MB = 4096
LIMITS = ("memory_mb", "cpu_s", "open_files", "file_size_mb", "processes")
MAX_OUTPUT = 256 * 1024 * 1024
MAX_LOG = 16 * 1024 * 1024
NULLS: dict[str, Any] = {"exception_type": None, "line": None}

SPEC = ToolSpec(
    kind="python",
    doc="Runs Python code in a warm process. Every input of the task, and below them those of its step or block, is a "
    "global variable of the code; `context` has all scopes, `ctx` the workload with `ctx` over it. The output is "
    "the variable `result`, the return value of `main(...)` (called with the inputs that its parameters name), or a "
    "top-level `return`. Printed lines are written to the log.",
    fields={
        "code": Field("code", "The code. It is not rendered as a template; pass data in `input`.", raw=True),
        "script": Field(
            "mapping",
            "Code from elsewhere: `{uri, source: {type: file|http|inline|gcs|s3}}`; files relative to the playbook, "
            "then to the working folder.",
            members=SCRIPT_MEMBERS,
            files="members",
            or_input=True,
        ),
        "module": Field("string", "A module to import instead of code, with `callable`; also `module:callable`."),
        "callable": Field("string", "The function of `module` to call with the inputs that its parameters name."),
        "libs": Field(
            "any",
            "Imports: a mapping alias -> module, `{from, import}` entries, or a list.",
            accepts=("mapping", "list"),
            or_input=True,
            each=Field("any", "A module, or `{from, import}`.", accepts=("string", "mapping")),
        ),
        "args": Field("mapping", "Additional inputs (older name of `input`).", or_input=True),
        "env": Field(
            "mapping", "Environment variables for the code. Only PATH, HOME and similar are inherited.", or_input=True
        ),
    },
    spec_keys={
        "timeout": "`total`: seconds after which the process is killed.",
        "limits": f"`memory_mb` ({MEMORY_MB}), `cpu_s`, `open_files`, `file_size_mb`, `processes`.",
        "isolation": "`process` (default: processes are not shared with other playbooks), `shared` (with all "
        "playbooks, which saves starts of processes), or `bwrap`: no network, read-only file "
        "system, separate PID namespace.",
        "fresh": "`true`: start a new process for every call.",
        "max_output_bytes": f"Maximum size of the result as JSON ({MAX_OUTPUT}).",
        "max_log_bytes": f"Maximum size of the printed output of one call ({MAX_LOG}).",
    },
    spec_fields={
        "isolation": Field("string", choices=("process", "shared", "bwrap"), also=("none",)),
        "fresh": Field("boolean", "`true`: start a new process for every call."),
        "limits": Field("mapping", "Limits of the process.", members=Members(fields=dict.fromkeys(LIMITS, POSITIVE))),
        "max_output_bytes": count(),
        "max_log_bytes": count(),
    },
    helpers={"py": NULLS},
    open_fields=True,
    requires=(("code", "script", "module", "callable"),),
    alternatives=(("code", "script"),),
    example='- name: score\n  kind: python\n  input:\n    rating: "{{ workload.rating }}"\n  code: |\n'
    "    def main(rating):\n        return {'score': rating * 10}\n",
)


async def run(call: ToolCall) -> Outcome:
    """Run the code or the callable."""
    from noetl.tools.python import task

    return await task.run(call)


run.own_timeout = True  # type: ignore[attr-defined]  # a call may wait for a process

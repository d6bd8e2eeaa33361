"""Kind shell with real shells: no injection, streamed and bounded output, no process left running."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections import Counter

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from noetl.core.templates.binding import Bound, bound_parts, compile_bound
from noetl.runtime.resources import close_loop_resources
from noetl.testing.tools import ToolHost, tool_call
from noetl.tools.registry import load, specs
from noetl.tools.shell.value_binding import CannotBind, bind
from tests.waiting import until

FOUND = {os.path.realpath(path): name for name in ("sh", "dash", "bash") if (path := shutil.which(name))}
SHELLS = sorted(FOUND.values())


@pytest.fixture
def shell(tool, tmp_path):
    """Run a command whose templates are rendered as the pipeline renders them."""

    def run(command=None, names=None, /, *, host=None, spec=None, timeout=None, **others):
        given = {**others} if command is None else {"command": command, **others}
        rendered = {}
        for name, value in given.items():
            field = specs()["shell"].fields.get({"cmd": "command", "cmds": "commands"}.get(name, name))
            is_bound = field is not None and field.bind
            rendered[name] = compile_bound(value).evaluate(names or {}) if is_bound else value
        return tool("shell", rendered, host=host or ToolHost(folder=tmp_path), spec=spec or {}, timeout=timeout)

    return run


def out(outcome):
    assert outcome.status == "ok", outcome.error
    return outcome.data["stdout"]


# ── what runs ───────────────────────────────────────────────────────────────────────────


def test_a_command_returns_its_output(shell):
    outcome = shell("echo out; echo err >&2")
    assert outcome.data == {"returncode": 0, "stdout": "out\n", "stderr": "err\n"}
    assert outcome.helpers["sh"] == {"returncode": 0, "signal": None}


@pytest.mark.parametrize("spelling", ["cmd", "command"])
def test_all_aliases_are_accepted(shell, spelling):
    assert out(shell(**{spelling: "echo hi"})) == "hi\n"


def test_commands_share_one_shell_and_stop_at_the_first_failure(shell, tmp_path):
    assert out(shell(cmds=["x=5", "cd /", "echo $x", "pwd"])) == "5\n/\n"
    outcome = shell(cmds=["echo one", "false", "touch never"])
    assert outcome.error.kind == "shell" and outcome.data["stdout"] == "one\n"
    assert not (tmp_path / "never").exists()
    assert out(shell(cmds="echo a\necho b")) == "a\nb\n"
    assert out(shell(cmd=["echo a", "echo b"])) == "a\nb\n"


def test_a_list_is_a_program_and_its_arguments(shell):
    evil = "a b; $(id) `id` *"
    assert out(shell(["printf", "%s|", "{{ x }}", "plain"], {"x": evil})) == f"{evil}|plain|"
    assert out(shell(["echo", 1, True])) == "1 True\n"


def test_a_string_that_is_a_single_template_is_the_command(shell):
    assert out(shell("{{ c }}", {"c": "echo 'a  b' c"})) == "a  b c\n"
    outcome = shell("{{ c }}", {"c": "echo a && echo b"})
    assert outcome.error.kind == "schema" and "`stdin:`" in outcome.error.message
    assert out(shell("{{ c }}", {"c": ["echo", "a && b"]})) == "a && b\n"


def test_scripts_can_be_text_or_files_and_select_their_interpreter(shell, tmp_path):
    assert out(shell(script='echo "$1-$2"', arguments=["a b", 3])) == "a b-3\n"
    (tmp_path / "job.sh").write_text("#!/bin/sh\necho from a file: $1 $who\n")
    assert out(shell(script={"uri": "job.sh"}, arguments=["x"], who="me")) == "from a file: x me\n"
    assert out(shell(script=f"#!{sys.executable} -S\nimport sys\nprint(sys.argv[1:])", arguments=["q"])) == "['q']\n"
    assert out(shell(script="print(6 * 7)", shell=f"{sys.executable} -S")) == "42\n"
    assert shell(script={"uri": "no.sh"}).error.kind == "not_found"


def test_templates_in_a_script_of_another_language_are_rejected(tool):
    text = compile_bound("#!/usr/bin/env python3\nprint('{{ x }}')").evaluate({"x": "') or 1"})
    outcome = tool("script", {"script": text})
    assert outcome.error.kind == "schema" and "could be evaluated as code" in outcome.error.message


def test_input_and_env_are_variables_and_few_others_are_inherited(shell, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "do-not-leak")
    names = out(shell("env", env={"STAGE": 3, "NOT": None}, who="me", _x="y"))
    assert "STAGE=3" in names and "who=me" in names and "NOT=" not in names
    assert "do-not-leak" not in names and "PATH=" in names
    assert "do-not-leak" in out(shell("env", spec={"inherit_env": ["AWS_SECRET_ACCESS_KEY"]}))
    assert "do-not-leak" in out(shell("env", spec={"inherit_env": True}))


def test_working_directory_and_stdin(shell, tmp_path):
    (tmp_path / "sub").mkdir()
    assert out(shell("pwd")) == f"{tmp_path}\n"
    assert out(shell("pwd", cwd="sub")) == f"{tmp_path}/sub\n"
    assert shell("pwd", cwd="nowhere").error.kind == "not_found"
    assert out(shell("cat", stdin="text ä")) == "text ä"
    assert out(shell("cat", stdin={"a": [1]})) == '{"a":[1]}'
    assert out(shell("true", stdin="x" * 1_000_000)) == ""  # a program that does not read it
    assert out(shell("cat")) == ""


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "found none"),
        ({"command": "a", "script": "b"}, "found `command` and `script`"),
        ({"command": 7}, "a string or a list"),
        ({"command": "true", "env": ["x"]}, "`env` must be a mapping"),
        ({"command": "true", "env": {"a=b": 1}}, "not a valid name"),
        ({"command": ["no-such-program-here"]}, "program not found: 'no-such-program-here'"),
        ({"command": "true", "shell": "/no/shell"}, "program not found: '/no/shell'"),
        ({"script": {"source": {}}}, "requires `uri`"),
    ],
)
def test_bad_parameters_are_clear_errors(tool, fields, expected):
    outcome = tool("shell", fields)
    assert outcome.status == "error" and expected in outcome.error.message
    assert outcome.helpers["sh"] == {"returncode": None, "signal": None}


def is_running(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# ── how it ends ─────────────────────────────────────────────────────────────────────────


def test_a_non_zero_exit_is_an_error_with_the_output(shell):
    outcome = shell("echo partly; echo 'what went wrong' >&2; exit 3")
    assert outcome.error.kind == "shell" and not outcome.error.retryable
    assert outcome.error.message == "the command exited with status 3: what went wrong"
    assert outcome.data["returncode"] == 3 and outcome.data["stdout"] == "partly\n"
    assert shell("grep x /dev/null", spec={"ok_codes": [1]}).status == "ok"
    assert "SIGKILL" in shell("kill -9 $$").error.message


def test_a_timeout_kills_the_whole_group(shell, tmp_path):
    started = time.monotonic()
    outcome = shell("echo before; sleep 60 & echo $! > pid; sleep 60", timeout=0.3, spec={"kill_grace": 0.2})
    assert outcome.error.kind == "timeout" and outcome.data["stdout"] == "before\n"
    assert time.monotonic() - started < 5
    assert not is_running(int((tmp_path / "pid").read_text()))


def test_a_program_that_ignores_sigterm_is_killed(shell):
    outcome = shell("trap '' TERM; while true; do sleep 0.05; done", timeout=0.2, spec={"kill_grace": 0.2})
    assert outcome.error.kind == "timeout"


def test_a_trap_can_clean_up(shell, tmp_path):
    shell("trap 'touch cleaned; exit 1' TERM; sleep 30 & wait", timeout=0.3)
    assert (tmp_path / "cleaned").exists()


def test_cancellation_kills_the_group(loop, tmp_path):
    async def cancelled():
        host = ToolHost(folder=tmp_path)
        command = "sleep 60 & echo $! $$; wait"
        work = asyncio.ensure_future(load("shell")(tool_call("shell", {"command": command}, host=host)))
        while not host.lines:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        pids = [int(word) for word in host.lines[0][1].split()]
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        while any(map(is_running, pids)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    loop.run(asyncio.wait_for(cancelled(), 10))


def test_background_processes_neither_delay_nor_outlive_the_task(shell, tmp_path):
    started = time.monotonic()
    assert out(shell("sleep 60 & echo $! > pid; echo done")) == "done\n"
    assert time.monotonic() - started < 5
    pid = int((tmp_path / "pid").read_text())
    asyncio.run(until(lambda: not is_running(pid)))  # SIGKILL was sent; the kernel delivers it


@pytest.mark.skipif(not shutil.which("setpriv"), reason="no setpriv on this machine")
def test_a_command_is_killed_with_its_worker():
    keeper = (
        "import asyncio, sys\nfrom noetl.testing.tools import ToolHost, tool_call\nfrom noetl.tools.registry import load\n"
        "class H(ToolHost):\n    def log(self, line, *, stream='stdout'):\n        print(line, flush=True)\n"
        "asyncio.run(load('shell')(tool_call('shell', {'command': 'echo $$; while true; do sleep 1; done'}, host=H())))"
    )
    worker = subprocess.Popen([sys.executable, "-c", keeper], stdout=subprocess.PIPE, text=True)
    try:
        child = psutil.Process(int(worker.stdout.readline()))
        worker.kill()
        _, alive = psutil.wait_procs([child], timeout=10)
        assert not alive
    finally:
        worker.kill()
        worker.wait()
        worker.stdout.close()


# ── output ──────────────────────────────────────────────────────────────────────────────


def test_lines_are_logged_while_the_command_runs(shell, tmp_path):
    host = ToolHost(folder=tmp_path)
    shell("echo one; echo two >&2; printf 'no end'", host=host)
    assert ("stdout", "one") in host.lines and ("stderr", "two") in host.lines and ("stdout", "no end") in host.lines


def test_many_lines_do_not_block_the_event_loop_and_none_is_lost(tmp_path):
    turns: list[int] = []

    class Listener(ToolHost):
        def log(self, line, *, stream="stdout"):
            turns.append(turn)
            super().log(line, stream=stream)

    turn = 0

    async def check():
        nonlocal turn
        host = Listener(folder=tmp_path)
        running = asyncio.ensure_future(load("shell")(tool_call("shell", {"command": "seq 30000"}, host=host)))
        while not running.done():
            turn += 1
            await asyncio.sleep(0)
        await close_loop_resources()
        return host.lines

    assert asyncio.run(check()) == [("stdout", str(number)) for number in range(1, 30_001)]
    assert max(Counter(turns).values()) < 2 * 256


def test_long_output_keeps_its_start_and_its_end(shell):
    outcome = shell(
        "echo first; yes | head -c 3000000; echo; echo last", spec={"max_output_bytes": 1000, "max_log_bytes": 500}
    )
    text = outcome.data["stdout"]
    assert text.startswith("first\n") and text.endswith("last\n") and len(text) < 1100
    assert "bytes omitted" in text and outcome.meta["truncated"] is True
    assert outcome.meta["stdout_bytes"] == 3_000_012


@pytest.mark.parametrize("size", [999, 1000, 1001, 1500, 70_000, 200_000])
def test_output_near_the_limit_is_complete_or_truncated(shell, size):
    text = shell(f"head -c {size} /dev/zero | tr '\\0' x", spec={"max_output_bytes": 1000}).data["stdout"]
    if size <= 1000:
        assert text == "x" * size
    else:
        head, _, rest = text.partition("\n... ")
        assert head == "x" * 500
        assert rest == f"{size - 1000:,} bytes omitted ...\n" + "x" * 500


def test_secrets_at_the_truncation_point_are_masked(shell, tmp_path):
    host = ToolHost(folder=tmp_path, credentials={"k": {"p": "s3cr3t-s3cr3t-s3cr3t"}})
    command = "head -c 490 /dev/zero | tr '\\0' x; printf s3cr3t-s3cr3t-s3cr3t; head -c 90000 /dev/zero | tr '\\0' y"
    text = shell(command, host=host, spec={"max_output_bytes": 1000}).data["stdout"]
    assert "s3cr" not in text and "***" in text


def test_output_that_is_not_utf8_is_readable(shell):
    assert out(shell("printf '\\377ab'")) == "\ufffdab"


# ── no injection ────────────────────────────────────────────────────────────────────────

EVIL = [
    "; touch pwned",
    "$(touch pwned)",
    "`touch pwned`",
    "' ; touch pwned ; '",
    '" ; touch pwned ; "',
    "\\' ; touch pwned",
    "\n touch pwned \n",
    "x\nEOF\ntouch pwned\n",
    "&& touch pwned",
    "| touch pwned",
    "> pwned",
    "${HOME}$PATH*",
    "-n --help",
    "}; touch pwned; {",
    ")); touch pwned",
    "a[$(touch pwned)]",
    "#!/bin/sh",
    "ä \U0001f600 \t\\",
    "",
]

PLACES = [
    ("printf %s {{ x }}", "{}"),
    ("printf '%s' \"{{ x }}\"", "{}"),
    ("printf %s '{{ x }}'", "{}"),
    ("printf %s 'a'{{ x }}\"b\"", "a{}b"),
    ("printf %s 'it is {{ x }} here'", "it is {} here"),
    ('printf %s "it is {{ x }} here"', "it is {} here"),
    ('printf %s "$(printf %s "{{ x }}." )"', "{}."),
    ("v={{ x }}; printf %s \"$v\"", "{}"),
    ("printf %s \"${NOTHING:-{{ x }}}\"", "{}"),
    ("cat <<EOF\n{{ x }}\nEOF", "{}\n"),
    ("cat <<-EOF\n\tsaid {{ x }}!\n\tEOF\nprintf %s {{ x }}", "said {}!\n{}"),
    ("printf a # a comment with {{ x }} in it's text\nprintf %s {{ x }}", "a{}"),
    ("(printf %s {{ x }})", "{}"),
    ("if [ {{ x }} = {{ x }} ]; then printf %s {{ x }}; fi", "{}"),
    ("case {{ x }} in a) printf a;; *) printf %s {{ x }};; esac", "{}"),
    ("f() { printf %s \"$1\"; }\nf {{ x }}", "{}"),
    ("printf '%s' \"\\\"{{ x }}\\\"\"", '"{}"'),
    ("echo a | { cat >/dev/null; printf %s {{ x }}; }", "{}"),
    ("printf %s \"$((1 + 2))\" {{ x }}", "3{}"),
    ("printf %s 1 2>/dev/null {{ x }} 1>&1", "1{}"),
]  # fmt: skip


def bash_run(text, variables, folder, shell):
    env = {"PATH": os.environ["PATH"], "HOME": "/home/x", **variables}
    done = subprocess.run([shell, "-c", text], env=env, cwd=folder, capture_output=True, stdin=subprocess.DEVNULL)
    return done.stdout.decode()


@pytest.mark.parametrize("shell_name", SHELLS)
@pytest.mark.parametrize(("text", "expected"), PLACES)
def test_no_value_becomes_syntax_in_any_context(tmp_path, shell_name, text, expected):
    for value in EVIL:
        command, variables = bind(bound_parts(compile_bound(text).evaluate({"x": value})))
        shown = bash_run(command, variables, tmp_path, shell_name)
        wanted = value
        if "printf %s 1 2>" in text and not value:
            wanted = ""
        assert shown == expected.replace("{}", wanted), (value, command)
        assert not os.listdir(tmp_path), (value, command)


@pytest.mark.parametrize(
    "text",
    [
        "printf %s `printf %s {{ x }}`",
        'printf %s "`printf %s {{ x }}`"',
        "printf %s $(printf %s {{ x }})",
        "printf %s $'a{{ x }}b'",
        'printf %s "${A:-"{{ x }}"}"',
        "cat <<'EOF'\n{{ x }}\nEOF",
        "cat <<< {{ x }}",
        "printf %s $((1 + {{ x }}))",
        "printf %s \\{{ x }}",
    ],
)
def test_unusual_contexts_never_run_a_value(tmp_path, text):
    for value in EVIL:
        try:
            rendered = compile_bound(text).evaluate({"x": value})
            command, variables = bind(bound_parts(rendered))
        except CannotBind:
            continue
        bash_run(command, variables, tmp_path, "bash")
        assert "pwned" not in os.listdir(tmp_path), (value, command)


ALPHABET = "ab '\"\\$`(){}[]<>|&;#\n*?~!=-"


@given(
    pieces=st.lists(st.text(alphabet=ALPHABET, max_size=8), min_size=2, max_size=5),
    value=st.text(alphabet=ALPHABET, max_size=6),
)
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
def test_in_random_commands_a_value_cannot_run_a_command(tmp_path, pieces, value):
    """Random text around a value that would leave a file behind if any part of it were ever executed."""
    trap = f"{value}; >{tmp_path}/pwned; $(>{tmp_path}/pwned)`>{tmp_path}/pwned`"
    parts = [part for piece in pieces for part in (piece.replace(">", "").replace("<", ""), Bound(trap))]
    if any(word in "".join(pieces) for word in ("<<",)):
        return
    try:
        command, variables = bind(parts)
    except CannotBind:
        return
    env = {"PATH": "/nonexistent", **variables}
    subprocess.run(
        ["/bin/bash", "-c", command], env=env, cwd=tmp_path, capture_output=True, stdin=subprocess.DEVNULL, timeout=20
    )
    assert not (tmp_path / "pwned").exists(), command


def test_numbers_are_allowed_everywhere_and_text_not_in_arithmetic(shell):
    assert out(shell("echo $(({{ n }} + 1)) '{{ n }}' {{ f }}", {"n": 41, "f": 1.5})) == "42 41 1.5\n"
    outcome = shell("echo $(({{ x }}))", {"x": "a[$(id)]"})
    assert outcome.error.kind == "schema" and "arithmetic expression" in outcome.error.message


def test_values_that_cannot_be_passed_to_a_program_are_rejected(shell):
    assert "NUL" in shell("echo {{ x }}", {"x": "a\x00b"}).error.message
    outcome = shell("echo {{ x }}", {"x": "x" * 3_000_000})
    assert outcome.error.kind == "limit" and "stdin" in outcome.error.message


def test_the_pipeline_binds_template_values_of_a_command():
    from noetl.core.language.compile import compile_playbook
    from noetl.core.pipeline.program import Programs

    text = (
        "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\nworkflow:\n"
        "  - step: start\n    tool:\n      kind: shell\n      cmd: 'echo {{ workload.x }}'\n"
    )
    compiled = compile_playbook(text, file="p.yaml", specs=specs())
    assert compiled.playbook is not None, compiled.diagnostics
    program = Programs(compiled.playbook, specs()).step("start")
    field = next(field for field in program.tasks[0].fields if field.name == "command")
    rendered = field.value.evaluate({"workload": {"x": "; id"}})
    assert bound_parts(rendered) == ["echo ", Bound("; id")]


HOSTILE = "a'; echo INJECTED; \"$(echo X)`echo Y`"


@pytest.mark.parametrize(
    "parts",
    [
        ("bash -c 'echo ", "'"), ('sh -c "echo ', '"'), ("/bin/bash -lc 'x; echo ", "'"), ("eval echo ", ""),
        ("true && bash -e -c \"echo '", "'\""),
    ],
)  # fmt: skip
def test_no_value_becomes_code_of_a_nested_shell(parts):
    with pytest.raises(CannotBind, match="would be evaluated as code"):
        bind([parts[0], Bound(HOSTILE), parts[1]])
    _text, variables = bind([parts[0], Bound("my file-1.txt"), parts[1]])
    assert list(variables.values()) == ["my file-1.txt"]


@pytest.mark.parametrize(
    "parts", [("bash -c 'printf %s \"$1\"' _ ", ""), ("bash script.sh -c; printf %s ", ""), ("printf %s ", " -c x")]
)
def test_arguments_of_a_nested_shell_accept_every_value(parts):
    _text, variables = bind([parts[0], Bound(HOSTILE), parts[1]])
    assert list(variables.values()) == [HOSTILE]


def test_code_in_a_list_of_arguments_is_bound_like_a_command():
    given = compile_bound(["bash", "-c", "printf %s {{ v }}"]).evaluate({"v": HOSTILE})
    outcome = asyncio.run(load("shell")(tool_call("shell", {"command": given})))
    assert outcome.data["stdout"] == HOSTILE


@pytest.mark.parametrize("value", ["inf", "nan", 1e308, pytest.param(10**400, id="huge"), -1, 0, True, "x", [1]])
def test_a_limit_that_is_not_a_positive_number_is_an_error_of_the_task(shell, value):
    outcome = shell("true", spec={"limits": {"memory_mb": value}})
    assert (outcome.status, outcome.error.kind) == ("error", "schema")
    assert "limits.memory_mb must be a positive number" in outcome.error.message


@pytest.mark.parametrize("name", ["kill_grace", "max_output_bytes", "max_log_bytes"])
@pytest.mark.parametrize("value", ["inf", "nan", pytest.param(10**400, id="huge"), -1, "x"])
def test_a_setting_that_is_not_a_number_is_an_error_of_the_task(shell, name, value):
    outcome = shell("true", spec={name: value})
    assert (outcome.status, outcome.error.kind) == ("error", "schema")
    assert f"spec.{name} of a shell task must be a number" in outcome.error.message

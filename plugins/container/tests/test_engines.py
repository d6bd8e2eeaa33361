"""Kind `container` with real engines."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest

from noetl.testing import ToolHost, run_tool, tool_call

IMAGE = "localhost/noetl-test:1"


def listed(engine: str) -> list[str]:
    """The containers that tasks have left."""
    command = [engine, "ps", "--all", "--format", "{{.Names}}", "--filter", "label=noetl.call"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.fixture
def run(engine):
    def run(*words, host=None, spec=None, timeout=120.0, **given):
        given = {"runtime": engine, "image": IMAGE, "network": "none", "command": list(words) or None, **given}
        return run_tool("container", given, host=host, spec=spec, timeout=timeout)

    yield run
    assert listed(engine) == []


def shell(code: str, *arguments: str) -> list[str]:
    return ["/bin/sh", "-c", code, "sh", *arguments]


def test_output_status_and_log_lines(run, engine):
    host = ToolHost()
    outcome = run(*shell("echo hello $1; echo bad >&2", "you"), host=host)
    assert outcome.status == "ok", outcome
    assert outcome.data == {"returncode": 0, "stdout": "hello you\n", "stderr": "bad\n", "files": {}}
    assert sorted(host.lines) == [("stderr", "bad"), ("stdout", "hello you")]
    assert outcome.helpers["container"] == {"returncode": 0, "runtime": engine, "image": IMAGE, "oom": False}


def test_lines_arrive_while_it_runs(run):
    host = ToolHost()
    at = []
    host.log = lambda line, stream="stdout": at.append(time.monotonic())
    run(*shell("echo first; sleep 1; echo second"), host=host)
    assert at[1] - at[0] > 0.5


def test_arguments_are_not_interpreted(run):
    assert run("/bin/echo", args=["$HOME", "a b", "; id", '"', "*", {"a": 1}, 7]).data["stdout"] == (
        '$HOME a b ; id " * {"a":1} 7\n'
    )


def test_an_option_cannot_be_given_as_image_or_argument(run):
    assert run("/bin/echo", args=["--privileged", "--", "-v", "/:/host"]).data["stdout"] == (
        "--privileged -- -v /:/host\n"
    )
    assert run("/bin/echo", image="--privileged").error.kind == "schema"


@pytest.mark.parametrize("as_list", [False, True])
def test_variables_have_exactly_their_values(run, as_list):
    values = {
        "PLAIN": "x", "EMPTY": "", "QUOTED": "\"a\" 'b'", "SPACES": "  a b  ", "HASH": "#a # b", "DOLLAR": "$HOME `id`",
        "EQUALS": "a=b=c", "LINES": "first\nsecond\n\nlast", "LETTERS": "äß漢", "JSON": {"a": [1, None]},
        "BACKSLASH": "a\\nb\\", "TRUE": True, "NUMBER": 1.5,
    }  # fmt: skip
    given = [{"name": name, "value": value} for name, value in values.items()] if as_list else values
    code = 'for name; do eval "printf \'%s=[%s]\\n\' $name \\"\\$$name\\""; done'
    outcome = run(*shell(code, *values), env=given)
    expected = values | {"JSON": '{"a":[1,null]}', "TRUE": "true", "NUMBER": "1.5"}
    assert outcome.data["stdout"] == "".join(f"{name}=[{value}]\n" for name, value in expected.items())


def test_secrets_are_masked_and_not_on_the_command_line(run, engine):
    host = ToolHost(credentials={"api": {"token": "sesame-4711"}})
    outcome = run(*shell("echo $TOKEN; echo x$TOKEN >&2; exit 3"), env={"TOKEN": "sesame-4711"}, host=host)
    assert "sesame" not in outcome.error.message
    assert "sesame" not in str(outcome.data)


def test_files_in_and_out(run):
    host = ToolHost()
    outcome = run(
        *shell("cat given.txt deep/down.json > out/joined; dd if=/dev/zero of=out/large bs=1024 count=300; pwd"),
        workdir="/work", host=host, outputs=["out", "/work/given.txt"],
        files={"given.txt": "text ä\n", "deep/down.json": {"a": [1]}, "/work/out/keep": "kept"},
    )  # fmt: skip
    assert outcome.status == "ok", outcome.error
    files = outcome.data["files"]
    large = files.pop("/work/out/large")
    assert files == {"/work/out/joined": 'text ä\n{"a":[1]}', "/work/out/keep": "kept", "/work/given.txt": "text ä\n"}
    assert large.meta.bytes == 300 * 1024
    assert outcome.data["stdout"] == "/work\n"


def test_a_reference_is_a_file(run):
    host = ToolHost()

    async def chunks():
        yield b"stored\n"

    reference = asyncio.run(host.put_result(chunks(), content_type="text/plain"))
    assert run("/bin/cat", "/in", files={"/in": reference}, host=host).data["stdout"] == "stored\n"


def test_an_output_that_does_not_exist_is_an_error(run):
    outcome = run("/bin/true", outputs=["/tmp/none"])
    assert (outcome.error.kind, outcome.error.message) == (
        "not_found",
        "`outputs`: the container has not written /tmp/none",
    )


def test_an_exit_status_is_an_error_with_the_output(run):
    outcome = run(*shell("echo some; echo no such day >&2; exit 7"))
    assert outcome.error.kind == "shell"
    assert outcome.error.message == "the container exited with status 7: no such day"
    assert outcome.data["returncode"] == 7
    assert outcome.data["stdout"] == "some\n"
    assert run(*shell("exit 7"), spec={"ok_codes": [7]}).data["returncode"] == 7


def test_user_and_working_folder(run):
    outcome = run(*shell("id -u; id -g; pwd; echo y >> /tmp/mine; cat /tmp/mine"), user="1234:99", workdir="/tmp",
                  files={"mine": "x\n"})  # fmt: skip
    assert outcome.error is None, outcome.error
    assert outcome.data["stdout"] == "1234\n99\n/tmp\nx\ny\n", outcome


def test_a_memory_limit_is_enforced(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = run(*shell("head -c 100000000 /dev/zero | tail > /dev/null"), memory="20m")
    assert outcome.status == "error", outcome
    assert outcome.error.kind in ("limit", "shell")
    assert outcome.data["returncode"] == 137
    assert list(tmp_path.iterdir()) == []  # podman's monitor writes a file `oom` into its working folder


def test_without_network_there_is_only_loopback(run):
    outcome = run(*shell("ls /sys/class/net"))
    assert outcome.data["stdout"].split() == ["lo"]


def test_a_large_output_is_cut_and_says_so(run):
    outcome = run(*shell("head -c 300000 /dev/zero | tail -c 300000"), spec={"max_output_bytes": 1000})
    assert len(outcome.data["stdout"]) == 1000
    assert outcome.meta["truncated"] is True


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ({"image": "localhost/no-such-image:1", "pull": "never"}, "not_found", "no-such-image"),
        ({"command": ["/bin/no-such-program"]}, "not_found", "no-such-program"),
        ({"command": ["/tool"], "files": {"/tool": "no program"}}, "shell", "permission denied"),
        ({"network": "host"}, "schema", "`network`"),
        ({"network": "container:other"}, "schema", "`network`"),
        ({"user": "--privileged"}, "schema", "`user`"),
        ({"workdir": "relative"}, "schema", "`workdir`"),
        ({"files": {"a": "x"}}, "schema", "absolute"),
        ({"files": {"/": "x"}}, "schema", "below /"),
        ({"files": {"/../..": "x"}}, "schema", "below /"),
        ({"memory": "much"}, "schema", "`memory`"),
        ({"cpu": "-1"}, "schema", "`cpu`"),
        ({"env": {"A B": "x"}}, "schema", "A B"),
        ({"env": {"LD_PRELOAD": "a\nb"}}, "schema", "line breaks"),
        ({"args": ["a\x00b"]}, "schema", "NUL"),
        ({"auth": "nothing"}, "auth", "nothing"),
        ({"auth": {"username": "ann"}}, "schema", "password"),
    ],
)
def test_an_error_says_what_is_wrong(run, given, kind, said):
    outcome = run("/bin/true", **given)
    assert outcome.error.kind == kind, outcome.error
    assert said.lower() in outcome.error.message.lower()


def test_a_timeout_stops_and_removes_it(run, engine):
    began = time.monotonic()
    outcome = run("/bin/sleep", "600", timeout=3.0)
    assert outcome.error.kind == "timeout"
    assert time.monotonic() - began < 60


def started(engine: str) -> bool:
    command = [engine, "ps", "--format", "{{.Names}}", "--filter", "label=noetl.call"]
    return bool(subprocess.run(command, capture_output=True, text=True).stdout.split())


def test_a_cancellation_stops_and_removes_it(run, engine):
    from noetl_container.task import run as execute

    call = tool_call(
        "container", {"runtime": engine, "image": IMAGE, "network": "none", "command": ["/bin/sleep", "600"]}
    )

    async def scenario() -> None:
        task = asyncio.ensure_future(execute(call))
        while not await asyncio.to_thread(started, engine):
            assert not task.done(), task.result()
            await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())


WORKER = """
import asyncio, sys
from noetl.testing import tool_call
from noetl_container.task import run
engine, image, seconds = sys.argv[1:]
given = {"runtime": engine, "image": image, "network": "none", "command": ["/bin/sleep", seconds]}
asyncio.run(run(tool_call("container", given)))
"""


def killed_worker(engine: str) -> None:
    """Start a container with another worker, and kill that worker."""
    process = subprocess.Popen([sys.executable, "-c", WORKER, engine, IMAGE, "600"])
    while not started(engine):
        assert process.poll() is None
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert listed(engine) != []


def test_the_container_of_a_killed_worker_is_removed_by_the_next_call(run, engine):
    killed_worker(engine)
    assert run("/bin/echo", "again").data["stdout"] == "again\n"  # another name would remain


def test_an_attempt_replaces_the_container_of_the_previous_one(run, engine, monkeypatch):
    from noetl_container import engine as module

    monkeypatch.setattr(module, "_has_ended", lambda owner: False)  # as if the worker ran on another machine
    killed_worker(engine)
    assert run("/bin/echo", "again").data["stdout"] == "again\n"


PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: containers}}
workload: {{day: "2026-11-17"}}
workflow:
  - step: report
    tool:
      kind: container
      runtime: {engine}
      image: {image}
      network: none
      command: [/bin/sh, -c]
      args: ['cat /work/in.json > /work/out; echo $DAY', ignored]
      env: [{{name: DAY, value: "{{{{ workload.day }}}}"}}]
      files: {{/work/in.json: "{{{{ {{'a': 1}} }}}}"}}
      outputs: [/work/out]
      resources: {{limits: {{cpu: 1, memory: 64Mi}}}}
      timeout_seconds: 60
      backoff_limit: 0
    set:
      ctx.seen: "{{{{ output.data.files['/work/out'] ~ ' ' ~ output.data.stdout.strip() }}}}"
    next: {{arcs: [{{step: check}}]}}
  - step: check
    tool: {{kind: python, code: "result = seen", input: {{seen: "{{{{ ctx.seen }}}}"}}}}
"""


def test_a_playbook_runs_a_container(run, engine, tmp_path):
    file = tmp_path / "containers.yaml"
    file.write_text(PLAYBOOK.format(engine=engine, image=IMAGE))
    environment = {**os.environ, "NOETL_HOME": str(tmp_path / "home")}
    for words in (["validate", str(file)], ["run", str(file), "--json"]):
        command = [sys.executable, "-m", "noetl.clictl", *words]
        ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert "warning" not in ran.stdout + ran.stderr
    assert '{\\"a\\":1} 2026-11-17' in ran.stdout, ran.stdout

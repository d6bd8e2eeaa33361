"""Class "trust model": tasks do not outlive their call, do not share interpreters, and do not read the installation."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import re
import subprocess
import sys
import time

import pytest

from noetl.runtime.resources import close_loop_resources
from noetl.testing import run_tool
from noetl.tools.python.interpreter_changes import interpreter_changes
from noetl.tools.python.process_pool import PythonPool
from tests.server.http.serving import Cluster


def ends(pid: int, seconds: float = 5.0) -> bool:
    """Whether a process ends in time; a zombie has ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                if file.read().rpartition(b")")[2].split()[0] == b"Z":
                    return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize(
    "command",
    [
        "setsid sleep 600 > /dev/null 2>&1 & echo $!",
        "(setsid sleep 600 > /dev/null 2>&1 & echo $!)",
        "nohup setsid sh -c 'sleep 600' > /dev/null 2>&1 & echo $!",
        "(setsid sh -c 'sleep 600 & echo $!; wait' 2> /dev/null &) | head -1",
        "env -i setsid sleep 600 > /dev/null 2>&1 & echo $!",
        "(env -i setsid sh -c 'sleep 600 > /dev/null 2>&1 & echo $!')",
        "env -i setsid sh -c '(env -i setsid sleep 600 > /dev/null 2>&1 & echo $!)'; exec true",
        "(exec -c setsid -f sh -c 'echo $$; exec sleep 600 > /dev/null 2>&1')",
    ],
)
def test_processes_in_other_sessions_end_with_their_shell_task(command):
    outcome = run_tool("shell", {"command": command})
    assert outcome.error is None
    assert ends(int(outcome.data["stdout"].split()[0]))


DAEMON = """
import subprocess
process = subprocess.Popen(["setsid", "sleep", "600"], start_new_session=True)
result = process.pid
"""
DOUBLE_FORK = """
import os
import pwd
import subprocess
import sys
read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(write, str(os.getpid()).encode())
        import time
        time.sleep(600)
    os._exit(0)
result = int(os.read(read, 20))
"""


@pytest.mark.parametrize("code", [DAEMON, DOUBLE_FORK], ids=["popen", "double fork"])
def test_processes_in_other_sessions_end_with_their_python_task(code):
    outcome = run_tool("python", {"code": code})
    assert outcome.error is None, outcome.error
    assert ends(outcome.data)


def test_a_killed_shell_task_takes_its_sessions_along(tmp_path):
    file = tmp_path / "pid"
    outcome = run_tool("shell", {"command": f"setsid sleep 600 & echo $! > {file}; sleep 600"}, timeout=1.0)
    assert outcome.error.kind == "timeout"
    assert ends(int(file.read_text()))


def pids(calls: list[tuple[str, str, str | None]]) -> list[int]:
    """The process that handles each of these calls (code, owner, isolation), one after the other."""

    async def run() -> list[int]:
        pool = PythonPool(cores=2)
        found = []
        for code, owner, isolation in calls:
            code += "\nimport os\nresult = os.getpid()"
            lasting, restored = interpreter_changes(code)
            request = {"code": code, "inputs": {}, "limits": {}, "retire": lasting, "restore": restored}
            reply = await pool.call(request, owner=owner, isolation=isolation)
            found.append(int(reply.body))
        await pool.close()
        await close_loop_resources()
        return found

    return asyncio.run(run())


def test_processes_are_not_shared_between_playbooks():
    first, second, third, shared, other_shared = pids(
        [("", "a", None), ("", "a", None), ("", "b", None), ("", "a", "shared"), ("", "b", "shared")]
    )
    assert first == second != third
    assert shared == other_shared


@pytest.mark.parametrize(
    "code",
    [
        "import builtins; builtins.print = None",
        "import time; time.time = lambda: 0",
        "import os; os.getcwd = lambda: '/'",
        "import sys; sys.settrace(lambda *a: None)",
        "import sys; sys.meta_path.insert(0, type('F', (), {'find_spec': lambda *a: None})())",
        "import sys; sys.excepthook = print",
        "import builtins; builtins.x = 1",
    ],
)
def test_a_process_whose_interpreter_was_changed_is_not_used_again(code):
    before, changed, after = pids([("", "a", None), (code, "a", None), ("import csv", "a", None)])
    assert before == changed != after


CHANGES = [
    "import sys; sys.modules['json'] = sys",
    "import sys, types; sys.modules['requests'] = types.ModuleType('requests')",
    "import signal; signal.signal(signal.SIGTERM, lambda *a: None)",
    "from signal import setitimer as later, ITIMER_REAL; later(ITIMER_REAL, 100)",
    "import _thread, time; _thread.start_new_thread(time.sleep, (100,))",
    "import atexit; atexit.register(print, 'x')",
    "import os; os.putenv('EVIL', '1')",
    "import os as o; o.dup(1)",
    "f = __import__('os').umask; f(0)",
    "import os; getattr(os, 'um' + 'ask')(0)",
    "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 4096))",
    "import sys; sys.stdin = open('/dev/null')",
    "import __main__; __main__.evil = 1",
    "json.dumps = lambda *a, **k: '1'",
    "import json; json.JSONEncoder.encode = lambda *a: '1'",
    "import json\nj = json\nj.dumps = print",
    "import json; setattr(json, 'dumps', print)",
    "import json; vars(json)['dumps'] = print",
    "import json; json.__dict__['dumps'] = print",
    "import posixpath; posixpath.join.__code__ = (lambda a, *p: '/evil').__code__",
    "import sys; sys.set_int_max_str_digits(0)",
    "import sys; sys.addaudithook(lambda *a: None)",
    "import codecs; codecs.register(lambda n: None)",
    "import collections.abc; collections.abc.Mapping.register(int)",
    "import socket; socket.socket = None",
    "import ssl; ssl._create_default_https_context = ssl._create_unverified_context",
    "import tempfile; tempfile.tempdir = '/evil'",
    "import pathlib; pathlib.Path.read_text = lambda s: 'x'",
    "import ctypes; ctypes.CDLL(None).umask(0)",
    "import random; random.seed = print",
    "from random import *; seed(1)",
    "import logging; logging.config = 1",
    "import logging.config; logging.config.dictConfig({'version': 1})",
    "import logging\ndef f(log): log.setLevel(1)\nf(logging.getLogger())",
    "import logging\nlog = logging.getLogger()\nfor log in [log]: log.setLevel(1)",
    "import logging; logging.raiseExceptions = False",
    "import warnings; warnings.showwarning = print",
    "import decimal; decimal.DefaultContext.prec = 3",
    "import gc; gc.freeze()",
    "import email, logging; logging.getLogger('email').setLevel(1)",  # perhaps the level that the module has set
    "import json; object.__setattr__(json._default_encoder, 'indent', 5)",
    "import json; type(json).__setattr__(json, 'evil', 1)",
    "import json, functools; functools.partial(setattr, json)('evil', 1)",
    "import json; [setattr(module, 'evil', 1) for module in [json]]",
    "import json\ndef f(module):\n    module.evil = 1\nf(json)",
    "import json\nj = json\nclass A:\n    def g(self, module): module.evil = 1\nA().g(j)",
    "import json\nx = {'a': json}\nx['a'].evil = 1",
    "import string\nclass T(string.Template): pass\nT.__mro__[1].evil = 1",
    "import urllib.parse as p; p.uses_netloc.append('evil')",
    "from urllib.parse import uses_netloc as u; u += ['evil']",
    "from html.entities import html5; html5.update(evil=1)",
    "import calendar; calendar.setfirstweekday(3)",
    "import sqlite3; sqlite3.register_adapter(dict, str)",
    "import xml.etree.ElementTree as E; E.register_namespace('evil', 'http://e')",
    "import shutil; shutil.register_archive_format('evil', print)",
    "import sys; sys.stdout.reconfigure(encoding='ascii')",
    "import sys; sys._getframe(1).f_globals['evil'] = 1",
    "import threading; threading.Timer(100, print).start()",
    "import subprocess; subprocess.Popen(['sleep', '100'])",
]


@pytest.mark.parametrize("code", CHANGES)
def test_a_process_is_not_used_again_after_code_that_changes_it(code):
    changed, after = pids([(code, "a", None), ("", "a", None)])
    assert changed != after


UNCHANGED = [
    "import os; os.environ['EVIL'] = '1'",
    "import os; os.chdir('/')",
    "import sys; sys.path.insert(0, '/tmp')",
    "import sys; sys.setrecursionlimit(500)",
    "import sys; sys.argv.append('evil')",
    "import contextvars; contextvars.ContextVar('evil').set(1)",
    "import collections, json\nq = collections.deque(); q.append(1); print(json); hasattr(json, 'x'); c = collections.Counter(); c.update(a=1)",
    "from collections import defaultdict\nd = defaultdict(list); d['a'].append(1); s = set(); s.add(2); x = {}; x.setdefault('a', []).append(1)",
    "import datetime as d, re\nrows = [d.date.today()]; rows.sort(); rows.append(re.sub('a', 'b', 'a')); total = 0; total += 1",
    "class A:\n    def __init__(self): self.x = 1\na = A(); a.x = 2; setattr(a, 'y', 3); getattr(a, 'x')",
    "import json, math, re, os, sys, time, csv\nx = dict(a=[1]); x['a'][0] = math.pi; x.update(b=os.getcwd(), c=sys.version)",
    "import datetime; d = datetime.datetime.now(); rows = [[1]]; rows[0][0] = d.isoformat()",
]


@pytest.mark.parametrize("code", UNCHANGED)
def test_a_process_is_used_again_after_state_that_it_restores(code):
    look = (
        "import contextvars, os, sys\n"
        "assert 'EVIL' not in os.environ and '/tmp' not in sys.path and sys.getrecursionlimit() == 1000\n"
        "assert sys.argv == ['noetl_task'] or len(sys.argv) == 1, sys.argv\n"
        "assert not list(contextvars.copy_context())"
    )
    first, second = pids([(code, "a", None), (look, "a", None)])
    assert first == second


# Code that changes state which is restored, and an expression that reads this state.
RESTORED = [
    ("import random; random.seed(1)", "random.getstate()"),
    ("from random import seed as s; s(1)", "random.getstate()"),
    ("import random; r = random; getattr(r, 'seed')(1)", "random.getstate()"),
    ("import decimal; decimal.getcontext().prec = 3; decimal.getcontext().traps[decimal.Inexact] = True", "str(decimal.getcontext())"),
    ("import decimal; decimal.setcontext(decimal.Context(prec=2))", "str(decimal.getcontext())"),
    ("import locale; locale.setlocale(locale.LC_ALL, 'C')", "locale.setlocale(locale.LC_ALL)"),
    ("import socket; socket.setdefaulttimeout(3)", "socket.getdefaulttimeout()"),
    ("import csv; csv.field_size_limit(1)", "csv.field_size_limit()"),
    ("import csv; csv.register_dialect('x', delimiter='|'); csv.register_dialect('excel', delimiter='|')",
     "[(name, csv.get_dialect(name).delimiter) for name in sorted(csv.list_dialects())]"),
    ("import os; os.umask(0)", "[os.umask(0o22), os.umask(0o22)][0]"),
    ("import gc; gc.disable(); gc.set_threshold(1, 2, 3)", "[gc.isenabled(), gc.get_threshold()]"),
    ("import warnings; warnings.simplefilter('error'); warnings.resetwarnings()", "repr(warnings.filters)"),
    ("import logging; logging.basicConfig(level=10)", "LOGGING"),
    ("import logging; logging.basicConfig(filename='/dev/null'); logging.error('x')", "LOGGING"),
    ("import logging; logging.getLogger().addHandler(logging.StreamHandler())", "LOGGING"),
    ("import logging; log = logging.getLogger('me'); log.setLevel(10); log.propagate = False", "LOGGING"),
    ("import logging; logging.getLogger(__name__).setLevel(10)", "LOGGING"),
    ("import logging; logging.disable(50); logging.addLevelName(7, 'SEVEN'); logging.captureWarnings(True)", "LOGGING"),
    ("import logging; logging.getLogger('a.b').disabled = True", "LOGGING"),
    ("import logging; logging.lastResort.setLevel(50)", "LOGGING"),
]  # fmt: skip
LOGGING = """[(each.level, each.handlers, each.filters, each.propagate, each.disabled) for each in
    (logging.root, *map(logging.getLogger, ['me', 'a', 'a.b', 'noetl_task']))] + [logging.root.manager.disable,
    logging.getLevelName(7), logging._warnings_showwarning, logging.lastResort.level,
    len([1 for ref in logging._handlerList if type(ref()).__name__ == 'FileHandler' and ref().stream])]"""


@pytest.mark.parametrize(("code", "read"), RESTORED, ids=[code for code, _ in RESTORED])
def test_state_that_code_changes_is_restored_for_the_next_call(code, read):
    """In the same process: what the next call reads is what a call before has read."""
    module = re.search(r"import (\w+)|from (\w+)", code)
    look = f"import os, {module[1] or module[2]}\nresult = [str({read.replace('LOGGING', LOGGING)}), os.getpid()]"

    async def run():
        pool = PythonPool(cores=1)
        replies = []
        for each in (look, code + "\n" + look, look, look):
            lasting, restored = interpreter_changes(code) if each.startswith(code) else (False, ())
            request = {"code": each, "inputs": {}, "limits": {}, "retire": lasting, "restore": restored}
            reply = await pool.call(request)
            assert reply.ok, reply.body
            replies.append(json.loads(reply.body))
        await pool.close()
        return replies

    before, changed, after, again = asyncio.run(run())
    assert before == after == again
    if "umask" not in code:
        assert changed[0] != before[0]  # the code had its effect
    assert changed[1] == before[1]


def test_an_ordinary_call_does_not_replace_the_process():
    first, *others = pids([("import csv, decimal, json, re, datetime", "a", None)] * 3)
    assert set(others) == {first}


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every environment")
def test_a_task_cannot_read_the_environment_of_its_worker():
    outcome = run_tool("python", {"code": "import os\nresult = open(f'/proc/{os.getppid()}/environ').read()"})
    assert outcome.error is not None


READS = """apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: reads}
workflow:
  - step: inside
    tool: {kind: duckdb, query: "SELECT contains(content, 'NOETL_TOKEN=noetl') AS leaked FROM read_text('/proc/self/environ')"}
    next: {arcs: [{step: beside}]}
  - step: beside
    tool: {kind: shell, command: "grep -c NOETL_TOKEN=noetl /proc/$PPID/environ || true"}
"""


def assert_no_token_in_the_environment_block(cluster: Cluster) -> None:
    """A task in the worker's process and one beside it read the file of the worker's process."""
    _, document = cluster.ask("POST", "/api/execute", {"content": READS})
    execution_id = document["execution_id"]
    assert cluster.finished(execution_id)["status"] == "success"
    _, found = cluster.ask("GET", f"/api/executions/{execution_id}/events")
    text = json.dumps(found)
    assert '"leaked": false' in text and '"leaked": true' not in text
    assert '"stdout": "0' in text, text[-2000:]


def test_every_file_of_an_installation_is_private(tmp_path):
    """Whatever the umask: folders have mode 0700, files 0600."""
    home = tmp_path / "home"
    playbook = tmp_path / "playbook.yaml"
    playbook.write_text(
        "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: a}\nworkflow:\n"
        "  - step: s\n    tool: {kind: python, code: \"print('x'); result = 'x' * 200000\"}\n"
    )
    environ = {**os.environ, "NOETL_HOME": str(home)}
    run = [sys.executable, "-m", "noetl", "run", str(playbook)]
    credential = [sys.executable, "-m", "noetl", "credential", "set", "x", "--type", "generic", "--data", '{"a": 1}']
    for command in (run, credential):
        subprocess.run(["sh", "-c", 'umask 0; exec "$@"', "sh", *command], env=environ, check=True, capture_output=True)
    cluster = Cluster(home)
    before = os.umask(0)
    try:
        cluster.start_server()
        cluster.start_worker()
        status, document = cluster.ask("POST", "/api/execute", {"content": playbook.read_text()})
        assert status == 202
        cluster.finished(document["execution_id"])
        assert_no_token_in_the_environment_block(cluster)
        found = {str(path): path.lstat().st_mode & 0o777 for path in [home, *home.rglob("*")]}
    finally:
        os.umask(before)
        cluster.stop()
    assert len(found) > 10
    assert {path: oct(mode) for path, mode in found.items() if mode & 0o077} == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start workers as another user")
def test_a_worker_of_another_user_cannot_read_the_installation(tmp_path):
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "admin.token").write_text("secret")
    code = """
import os, subprocess, tempfile
from noetl.settings import load
from noetl.worker.user import become_user, bundles_folder
settings = load().settings
become_user(settings)
assert os.getresuid() == os.getresgid() == (UID, UID, UID) and 0 not in os.getgroups(), os.getresuid()
for name in ("admin.token", "."):
    try:
        os.listdir(settings.home) if name == "." else open(settings.home / name)
    except PermissionError:
        continue
    raise SystemExit(f"{name} can be read")
shown = subprocess.run(["cat", str(settings.home / "admin.token")], capture_output=True).stdout
assert shown == b""
try:
    os.setuid(0)
except PermissionError:
    assert str(bundles_folder(settings)).startswith(tempfile.gettempdir())
    print("done")
"""
    nobody = pwd.getpwnam("nobody")
    code = (
        code.replace("(UID, UID, UID) and", f"({nobody.pw_uid},) * 3 and") if nobody.pw_uid == nobody.pw_gid else code
    )
    environ = {**os.environ, "NOETL_HOME": str(home), "NOETL_WORKER_USER": "nobody", "NOETL_RESULTS": "s3://bucket/x"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "done\n", done.stderr


@pytest.mark.parametrize(
    ("user", "message"), [("no-such-user", "no user"), ("daemon", "cannot write the result store")]
)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start workers as another user")
def test_a_user_that_cannot_be_used_is_an_error(tmp_path, user, message):
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    code = (
        "from noetl.settings import load; from noetl.worker.user import become_user\n"
        "from noetl.errors import RequestRefused\n"
        "try:\n    become_user(load().settings)\nexcept RequestRefused as problem:\n    print(problem)"
    )
    environ = {**os.environ, "NOETL_HOME": str(home), "NOETL_WORKER_USER": user}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert message in done.stdout

"""Kind python in real processes: inputs and outputs, errors with line numbers, limits and isolation."""

from __future__ import annotations

import asyncio
import os
import textwrap
import time

import psutil
import pytest

from noetl.testing.tools import ToolHost, tool_call
from noetl.tools.registry import load


@pytest.fixture
def python(tool):
    def run(code, /, input=None, **others):
        given = dict(input or {})
        return tool("python", {"code": textwrap.dedent(code), **given}, **others)

    return run


def data(outcome):
    assert outcome.status == "ok", outcome.error
    return outcome.data


# ── what the code sees and answers ──────────────────────────────────────────────────────


def test_every_input_is_a_global_and_result_is_the_output(python):
    assert data(python("result = a + b", {"a": 1, "b": 2})) == 3


def test_input_data_input_and_args_contain_all_inputs(python):
    code = "result = [input_data['a'], input.a, args['a'], args.b, sorted(input_data)]"
    assert data(python(code, {"a": 1, "b": 2})) == [1, 1, 1, 2, ["a", "b"]]


def test_an_input_named_input_data_keeps_its_own_value(python):
    assert data(python("result = input_data", {"input_data": "mine"})) == "mine"


def test_args_of_the_task_are_inputs(python):
    assert data(python("result = x * y", {"x": 2, "args": {"y": 21}})) == 42


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("def main(a, b):\n    return a - b", -1),
        ("def main(b, a=10, c=5):\n    return [a, b, c]", [1, 2, 5]),
        ("def main(a, z=3, b=4):\n    return [a, z, b]", [1, 3, 2]),
        ("def main(*, a, k=7):\n    return [a, k]", [1, 7]),
        ("def main(**rest):\n    return rest", {"a": 1, "b": 2}),
        ("def main(a, **rest):\n    return rest", {"b": 2}),
        ("def main():\n    return 'nothing'", "nothing"),
        ("async def main(a):\n    import asyncio\n    await asyncio.sleep(0)\n    return a", 1),
        ("def main(input_data):\n    return input_data", {"a": 1, "b": 2}),
        ("main = lambda a: a + 40", 41),
        ("class Job:\n    def __call__(self, a):\n        return a\nmain = Job()", 1),
        ("import functools\ndef both(a, b):\n    return [a, b]\nmain = functools.partial(both, 9)", [9, 2]),
        ("def main(a):\n    return -1\nresult = main(a) * 5", -5),
        ("def main(a):\n    pass", None),
    ],
)
def test_main_is_called_with_the_inputs_its_parameters_name(python, code, expected):
    assert data(python(code, {"a": 1, "b": 2})) == expected


def test_a_missing_input_of_main_is_named(python):
    outcome = python("def main(user, other): ...", {"usr": 1})
    assert outcome.error.kind == "python"
    assert 'main() requires "user", "other"' in outcome.error.message
    assert "available: usr" in outcome.error.message


SCOPES = {
    "workload": {"api_key": "k", "deep": {"x": [1]}},
    "ctx": {"n": 4},
    "user_raw": {"id": 7},
    "execution_id": "99",
}


def test_a_context_parameter_gets_all_scopes_as_attributes_and_by_get(python):
    code = """
    def main(context):
        assert context.get('nothing') is None and context.get('count', 0) == 0
        assert 'workload' in context and context["workload"]["deep"].x == [1]
        return [context.workload.get('api_key'), context.get('items'), context["user_raw"]["id"], context.ctx.n]
    """
    assert data(python(code, {"items": [1, 2]}, scopes=SCOPES)) == ["k", [1, 2], 7, 4]


def test_main_with_context_and_results(python):
    code = "def main(context, results):\n    return [context['user_raw']['id'], results['user_raw']['id']]"
    assert data(python(code, {}, scopes=SCOPES)) == [7, 7]
    assert data(python("def main(results):\n    return sorted(results)", scopes=SCOPES)) == ["user_raw"]


def test_scopes_can_be_parameters_and_a_missing_attribute_lists_the_keys(python):
    assert data(python("def main(workload, execution_id):\n    return execution_id", scopes=SCOPES)) == "99"
    outcome = python("def main(context):\n    return context.wrkload", scopes=SCOPES)
    assert "no key 'wrkload'; available keys: " in outcome.error.message


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("return a * 2", 2),
        ("if a == 1:\n    return 'one'\nreturn 'other'", "one"),
        ("x: int = a\ndef f():\n    return x + 1\nfor i in range(3):\n    if i == 2:\n        return [f(), i]", [2, 2]),
        ("import json, os.path as p\nreturn [json.dumps(a), p.join('a', 'b')]", ["1", "a/b"]),
        ("total = sum(n for n in [1, 2, 3])\nreturn total", 6),
        ("from __future__ import annotations\ntry:\n    [][1]\nexcept IndexError:\n    return 'caught'", "caught"),
        ("if a > 5:\n    return 1\nresult = 'fell through'", "fell through"),
        ("import asyncio\nawait asyncio.sleep(0)\nreturn a", 1),
        ("import asyncio\nresult = await asyncio.sleep(0, a)", 1),
        ("return", None),
    ],
)  # fmt: skip
def test_a_top_level_return_is_the_output(python, code, expected):
    assert data(python(code, {"a": 1})) == expected


def test_code_without_output_returns_null(python):
    assert data(python("x = 1")) is None
    assert data(python("")) is None


def test_an_input_named_result_is_not_the_output(python):
    assert data(python("def main(result):\n    return result + 1", {"result": 1})) == 2
    assert data(python("x = 1", {"result": 1})) is None


def test_the_main_guard_of_a_script_does_not_run(python):
    assert data(python("def main():\n    return 1\nif __name__ == '__main__':\n    raise SystemExit(9)")) == 1


def test_dataclasses_with_string_annotations_and_nested_functions_work(python):
    code = """
    from __future__ import annotations
    from dataclasses import dataclass
    @dataclass
    class P:
        x: int
        def double(self): return P(helper(self.x))
    def helper(n): return n * 2
    result = P(a).double()
    """
    assert data(python(code, {"a": 4})) == {"x": 8}


@pytest.mark.parametrize(
    ("libs", "code", "expected"),
    [
        ({"j": "json"}, "result = j.dumps([1])", "[1]"),
        ({"json": None}, "result = json.dumps(1)", "1"),
        (["json", "os.path"], "result = [json.dumps(1), os.path.basename('a/b')]", ["1", "b"]),
        (["json as j"], "result = j.dumps(1)", "1"),
        ({"dt": {"from": "datetime", "import": "datetime"}}, "result = dt(2020, 1, 2).year", 2020),
        ([{"from": "datetime", "import": ["date", "timedelta"]}], "result = timedelta(9).days + date.min.year", 10),
        ({"x": {"from": "math", "import": "pi, floor as down"}}, "result = down(pi)", 3),
        ([{"import": "json", "as": "jj"}], "result = jj.dumps(1)", "1"),
        ([{"jay": "json"}], "result = jay.dumps(1)", "1"),
        ({"join": "os.path.join"}, "result = join('a', 'b')", "a/b"),
        ({"dt": "datetime.datetime"}, "result = dt.min.year", 1),
    ],
)  # fmt: skip
def test_libs_are_imported_first(python, libs, code, expected):
    assert data(python(code, {"libs": libs})) == expected


def test_a_library_that_is_not_installed_is_named(python):
    outcome = python("result = 1", {"libs": {"pd": "pandas_that_is_not_there"}})
    assert outcome.error.kind == "python"
    assert outcome.helpers["py"]["exception_type"] == "ModuleNotFoundError"
    assert "pandas_that_is_not_there" in outcome.error.message and "libs" in outcome.error.message


def test_module_and_callable_in_the_playbooks_folder(tool, tmp_path):
    (tmp_path / "scoring").mkdir()
    (tmp_path / "scoring" / "calculator.py").write_text(
        "from scoring import base\ndef compute(rating, bonus=0):\n    return base.SCALE * rating + bonus\n"
    )
    (tmp_path / "scoring" / "base.py").write_text("SCALE = 10\n")
    host = ToolHost(folder=tmp_path)
    for form in (
        {"module": "scoring.calculator", "callable": "compute"},
        {"module": "scoring.calculator:compute"},
        {"callable": "scoring.calculator:compute"},
    ):
        assert data(tool("python", {**form, "rating": 4}, host=host)) == 40
    # The file changed: the next call sees it, warm process or not.
    (tmp_path / "scoring" / "base.py").write_text("SCALE = 1000\n")
    assert data(tool("python", {"module": "scoring.calculator:compute", "rating": 4}, host=host)) == 4000
    outcome = tool("python", {"module": "scoring.calculator", "callable": "compte", "rating": 4}, host=host)
    assert "has no 'compte'" in outcome.error.message


def test_a_script_is_code_from_a_file(tool, tmp_path):
    (tmp_path / "job.py").write_text("\n\ndef main(n):\n    return 10 / n\n")
    host = ToolHost(folder=tmp_path)
    assert data(tool("python", {"script": {"uri": "job.py"}, "n": 5}, host=host)) == 2
    outcome = tool("python", {"script": {"uri": "job.py"}, "n": 0}, host=host, code_line=40, where="p.yaml:1:1")
    assert "(job.py:4)" in outcome.error.message
    assert tool("python", {"script": {"uri": "no.py"}}, host=host).error.kind == "not_found"


def test_relative_paths_are_relative_to_the_playbook(python, tmp_path):
    (tmp_path / "numbers.txt").write_text("7")
    assert data(python("result = open('numbers.txt').read()", host=ToolHost(folder=tmp_path))) == "7"


def test_nothing_to_run_is_a_clear_error(tool):
    outcome = tool("python", {"a": 1})
    assert outcome.error.kind == "schema"
    assert "set `code`" in outcome.error.message


# ── results ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("__import__('datetime').datetime(2020, 1, 2, 3)", "2020-01-02T03:00:00"),
        ("__import__('datetime').date(2020, 1, 2)", "2020-01-02"),
        ("__import__('datetime').timedelta(minutes=2)", 120.0),
        ("__import__('decimal').Decimal('1.50')", 1.5),
        ("__import__('decimal').Decimal('10')", 10),
        ("__import__('decimal').Decimal('0.1234567890123456789')", "0.1234567890123456789"),
        ("{3, 1, 2}", [1, 2, 3]),
        ("(1, 2)", [1, 2]),
        ("b'abc'", "YWJj"),
        ("range(3)", [0, 1, 2]),
        ("(n for n in [1, 2])", [1, 2]),
        ("{'k': 1}.keys()", ["k"]),
        ("__import__('pathlib').Path('a/b')", "a/b"),
        ("__import__('uuid').UUID(int=1)", "00000000-0000-0000-0000-000000000001"),
        ("__import__('enum').Enum('E', 'A B').B", 2),
        ("__import__('collections').OrderedDict(a=1)", {"a": 1}),
        ("__import__('collections').deque([1])", [1]),
        ("__import__('types').MappingProxyType({'a': {1, 2}})", {"a": [1, 2]}),
        ("__import__('collections').namedtuple('N', 'a')(1)", [1]),
        ("__import__('array').array('i', [1, 2])", [1, 2]),
        ("float('nan')", None),
        ("[1.5, float('inf'), {'x': float('nan')}]", [1.5, None, {"x": None}]),
        ("{1: 'a', None: 'b', True: 'c', 2.5: 'd'}", {"1": "c", "null": "b", "2.5": "d"}),
        ("{__import__('datetime').date(2020, 1, 2): 1}", {"2020-01-02": 1}),
        ("2 ** 200", 2**200),
        ("'\\U0001f600 \\x00'", "\U0001f600 \x00"),
        ("type('Q', (), {'model_dump': lambda self: {'m': 1}})()", {"m": 1}),
    ],
)
def test_results_that_are_not_json_are_converted(python, expression, expected):
    assert data(python(f"result = {expression}")) == expected


def test_arrow_tables_become_rows(python):
    assert data(python("import pyarrow\nresult = pyarrow.table({'a': [1, 2]})")) == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("result = {'a': [1, {'b': print}]}", "result.a[1].b is of type builtins.builtin_function_or_method"),
        ("result = object()", "result is of type builtins.object"),
        ("result = {(1, 2): 3}", "keys of a result must be strings"),
        ("result = []\nresult.append(result)", "contains itself"),
        ("result = 'a\\ud800'", "not valid Unicode"),
    ],
)
def test_results_that_are_not_data_are_rejected_with_their_path(python, code, expected):
    outcome = python(code)
    assert outcome.error.kind == "schema"
    assert expected in outcome.error.message


def test_large_inputs_and_results_are_supported(python):
    text = "x" * 30_000_000
    assert data(python("result = {'n': len(text), 'text': text[::-1]}", {"text": text})) == {
        "n": 30_000_000,
        "text": text,
    }


def test_a_result_over_the_limit_is_rejected(python):
    outcome = python("result = 'x' * 5000", spec={"max_output_bytes": 1000})
    assert outcome.error.kind == "limit"
    assert "spec.max_output_bytes (1,000)" in outcome.error.message


# ── errors ──────────────────────────────────────────────────────────────────────────────


def test_an_exception_has_the_line_of_the_playbook(python):
    code = "\ndef divide(n):\n    return 1 / n\n\ndef main():\n    return divide(0)\n"
    outcome = python(code, where="orders.yaml:10:5", code_line=14)
    assert outcome.status == "error"
    assert outcome.error.kind == "python" and not outcome.error.retryable
    assert outcome.error.message == "ZeroDivisionError: division by zero (orders.yaml:16)"
    assert outcome.helpers["py"] == {"exception_type": "ZeroDivisionError", "line": 16}
    assert outcome.error.details["traceback"] == [
        "orders.yaml:19 in main: return divide(0)",
        "orders.yaml:16 in divide: return 1 / n",
    ]


def test_library_frames_are_omitted_but_named(python):
    outcome = python("import json\njson.loads('{')", where="p.yaml:1:1", code_line=5)
    assert outcome.error.details["traceback"] == ["p.yaml:6: json.loads('{')"]
    assert "json" in outcome.error.details["raised_in"]
    assert outcome.helpers["py"]["exception_type"] == "JSONDecodeError"


def test_a_syntax_error_has_its_line(python):
    outcome = python("x = 1\ny = = 2\n", where="p.yaml:1:1", code_line=5)
    assert "SyntaxError: invalid syntax (p.yaml:6)" in outcome.error.message


def test_causes_and_unprintable_exceptions_are_reported(python):
    outcome = python("try:\n    {}['k']\nexcept KeyError as e:\n    raise RuntimeError('no order') from e")
    assert outcome.error.details["cause"] == "KeyError: 'k'"
    outcome = python("class Odd(Exception):\n    def __str__(self): raise ValueError\nraise Odd")
    assert "message not available" in outcome.error.message
    assert python("raise ValueError('x' * 100000)").error.message.endswith("... (code:1)")
    outcome = python(
        "try:\n    raise KeyError(chr(0xd800))\nexcept KeyError as e:\n    raise ValueError(chr(0xd800)) from e"
    )
    assert (
        outcome.error.message.startswith("ValueError: \\ud800")
        and outcome.error.details["exception_type"] == "ValueError"
    )


def test_a_secret_in_a_long_message_is_masked_before_truncation(python):
    host = ToolHost(credentials={"t": {"token": "s3cr3t-s3cr3t"}})
    outcome = python("raise ValueError('x' * 3985 + 's3cr3t-s3cr3t')", host=host)
    assert "s3cr" not in outcome.error.message


def test_helpers_exist_on_success_and_on_every_error(python):
    nulls = {"exception_type": None, "line": None}
    assert python("result = 1").helpers["py"] == nulls
    assert python("while True: pass", timeout=0.3).helpers["py"] == nulls


# ── output lines ────────────────────────────────────────────────────────────────────────


def test_prints_are_log_lines_and_do_not_corrupt_the_protocol(python):
    host = ToolHost()
    code = """
    import os, subprocess, sys
    print('hello', 'ä')
    print('to stderr', file=sys.stderr)
    os.write(1, b'raw bytes \\xff\\n')
    subprocess.run(['echo', 'from a child'])
    sys.stdout.write('no newline')
    result = 1
    """
    assert data(python(code, host=host)) == 1
    assert ("stderr", "to stderr") in host.lines
    assert {"hello ä", "raw bytes \ufffd", "from a child", "no newline"} <= {line for _, line in host.lines}


def test_lines_are_delivered_while_the_code_runs(loop, tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    class Opens(ToolHost):
        def log(self, line, *, stream="stdout"):
            super().log(line, stream=stream)
            os.close(os.open(gate, os.O_WRONLY))  # the code waits for this line to have arrived

    host = Opens(folder=tmp_path)
    code = "print('ready')\nresult = open('gate').read()"
    outcome = loop.run(load("python")(tool_call("python", {"code": code}, host=host, timeout=20)))
    assert outcome.status == "ok" and host.lines == [("stdout", "ready")]


def test_the_last_lines_are_in_the_outcome(python):
    assert python("print('one')\nprint('two')\nresult = 1").meta["log"] == "one\ntwo"
    assert "log" not in python("result = 1").meta
    assert python("print('before')\nraise ValueError('no')").meta["log"] == "before"
    long = python("for n in range(5000):\n    print('line', n)").meta["log"]
    assert len(long) < 9_000 and long.startswith("... ") and long.endswith("line 4999")


def test_excessive_output_is_truncated(python):
    host = ToolHost()
    code = "for n in range(200000):\n    print('line', n)\nprint('x' * 10_000_000)\nresult = 'done'"
    assert data(python(code, host=host, spec={"max_log_bytes": 10_000})) == "done"
    assert sum(len(line) for _, line in host.lines) < 11_000
    assert "log truncated" in host.lines[-1][1]


def test_lines_of_concurrent_calls_are_not_mixed(python):
    first, second = ToolHost(), ToolHost()
    python("print('one', end='')", host=first)
    python("print('two')", host=second)
    assert [line for _, line in second.lines] == ["two"]


# ── bad behaviour ───────────────────────────────────────────────────────────────────────


async def until(holds):
    while not holds():  # noqa: ASYNC110 - what is waited for happens in another process
        await asyncio.sleep(0.01)


def is_running(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def process_of(python):
    return data(python("import os\nresult = os.getpid()"))


def test_an_endless_loop_is_killed_on_timeout(python):
    pid = process_of(python)
    started = time.monotonic()
    outcome = python("import os\nprint(os.getpid())\nwhile True: pass", timeout=0.5)
    assert outcome.error.kind == "timeout" and outcome.error.retryable
    assert time.monotonic() - started < 5
    assert process_of(python) != pid


def test_cancelling_kills_the_process_and_its_children(loop, tmp_path):
    async def cancelled():
        host = ToolHost(folder=tmp_path)
        code = "import os, subprocess\np = subprocess.Popen(['sleep', '60'])\nprint(os.getpid(), p.pid)\np.wait()"
        work = asyncio.ensure_future(load("python")(tool_call("python", {"code": code}, host=host)))
        await until(lambda: host.lines)
        pids = [int(word) for word in host.lines[0][1].split()]
        assert all(psutil.pid_exists(pid) for pid in pids)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        await until(lambda: not any(map(is_running, pids)))

    loop.run(asyncio.wait_for(cancelled(), 10))


@pytest.mark.parametrize(
    ("code", "kind", "expected"),
    [
        ("import os\nos._exit(7)", "python", "exit status 7"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "python", "SIGSEGV"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "python", "SIGKILL"),
        ("import os\nos.closerange(3, 1000)\nresult = 1", "python", "process"),
        ("import sys\nsys.exit(3)", "python", "sys.exit(3)"),
        ("import sys\nsys.exit('went wrong')", "python", "went wrong"),
        ("def main():\n    raise SystemExit(2)", "python", "sys.exit(2)"),
        ("raise KeyboardInterrupt", "python", "KeyboardInterrupt"),
        ("def f(): f()\nf()", "python", "RecursionError"),
    ],
)
def test_code_that_ends_its_process_is_an_error_and_the_next_call_works(python, code, kind, expected):
    outcome = python(code)
    assert outcome.error.kind == kind
    assert expected in outcome.error.message
    assert data(python("result = 1")) == 1


def test_a_clean_exit_is_a_success(python):
    assert data(python("import sys\nresult = 5\nsys.exit()")) == 5
    assert data(python("import sys\nsys.exit(0)")) is None


def test_a_memory_bomb_is_a_limit_error(python):
    outcome = python("x = []\nwhile True: x.append(bytearray(10_000_000))", spec={"limits": {"memory_mb": 200}})
    assert outcome.error.kind == "limit"
    assert "spec.limits.memory_mb is 200" in outcome.error.message
    assert data(python("result = len(bytearray(300_000_000))")) == 300_000_000  # the next call has its own limit


def test_cpu_file_and_descriptor_limits_are_enforced(python, tmp_path):
    outcome = python("while True: pass", spec={"limits": {"cpu_s": 1}}, timeout=30)
    assert outcome.error.kind == "limit" and "cpu_s" in outcome.error.message
    host = ToolHost(folder=tmp_path)
    outcome = python("open('big', 'wb').write(bytes(3_000_000))", spec={"limits": {"file_size_mb": 1}}, host=host)
    assert outcome.status == "error"
    outcome = python("x = [open('/dev/null') for _ in range(100)]", spec={"limits": {"open_files": 30}})
    assert outcome.helpers["py"]["exception_type"] == "OSError"
    outcome = python("result = 1", spec={"limits": {"memroy_mb": 1}})
    assert outcome.error.kind == "schema" and "memroy_mb" in outcome.error.message


@pytest.mark.parametrize("value", ["inf", "nan", 1e308, pytest.param(10**400, id="huge"), -1, 0, True, "x", [1]])
def test_a_limit_that_is_not_a_positive_number_is_an_error_of_the_task(python, value):
    outcome = python("result = 1", spec={"limits": {"memory_mb": value}})
    assert (outcome.status, outcome.error.kind) == ("error", "schema")
    assert "limits.memory_mb must be a positive number" in outcome.error.message


def test_a_fork_does_not_reply_twice(python):
    code = "import os\nif os.fork() == 0:\n    result = 'child'\nelse:\n    os.wait()\n    result = 'parent'"
    assert data(python(code)) == "parent"
    assert data(python("result = 1")) == 1


def test_writing_to_the_protocol_socket_affects_only_the_process(python):
    code = """
    import os
    for fd in map(int, os.listdir('/proc/self/fd')):
        try:
            os.write(fd, b'garbage garbage garbage')
        except OSError:
            pass
    result = 1
    """
    assert python(code).status == "error"
    assert data(python("result = 2")) == 2


def test_calls_are_isolated_from_each_other(python, tmp_path):
    pid = process_of(python)
    spoil = """
    import builtins, os, sys, json
    leftover = 1
    os.environ['LEFT'] = 'x'
    os.chdir('/')
    sys.path.insert(0, '/nowhere')
    sys.stdout = None
    sys.setrecursionlimit(5000)
    """
    data(python(spoil, {"a": 1, "env": {"MINE": "1"}}, host=ToolHost(folder=tmp_path)))
    look = """
    import os, sys
    print('still works')
    result = [os.getpid(), 'leftover' in globals(), 'a' in globals(), 'LEFT' in os.environ, 'MINE' in os.environ,
              os.getcwd(), '/nowhere' in sys.path, sys.getrecursionlimit()]
    """
    host = ToolHost(folder=tmp_path)
    assert data(python(look, host=host)) == [pid, False, False, False, False, str(tmp_path), False, 1000]
    assert host.lines == [("stdout", "still works")]


def test_the_environment_is_almost_empty(python, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "do-not-leak")
    names = data(python("import os\nresult = sorted(os.environ)", spec={"fresh": True}))
    assert "AWS_SECRET_ACCESS_KEY" not in names and "PATH" in names
    assert data(python("import os\nresult = os.environ['STAGE']", {"env": {"STAGE": 3}})) == "3"


def test_a_thread_left_behind_retires_the_process(python):
    pid = process_of(python)
    code = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\nresult = 1"
    assert data(python(code)) == 1
    assert process_of(python) != pid


def test_a_fresh_process_is_used_once(python):
    code = "import os\nresult = os.getpid()"
    warm = process_of(python)
    one, two = (data(python(code, spec={"fresh": True})) for _ in range(2))
    assert len({warm, one, two}) == 3
    assert process_of(python) == warm


def test_bwrap_is_used_when_requested(python, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    outcome = python("result = 1", spec={"isolation": "bwrap"})
    assert "bwrap (bubblewrap) is not installed" in outcome.error.message
    fake = tmp_path / "bwrap"
    fake.write_text(
        '#!/bin/sh\necho "$@" > "$(dirname "$0")/asked"\nwhile [ "$1" != "--" ]; do shift; done\nshift\nexec "$@"\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert data(python("result = 1", spec={"isolation": "bwrap"})) == 1
    assert "--unshare-all" in (tmp_path / "asked").read_text()
    assert (
        'valid values are "process", "shared" and "bwrap"'
        in python("result = 1", spec={"isolation": "jail"}).error.message
    )

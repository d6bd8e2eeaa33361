"""Kinds are discovered in the package and in plug-ins; a broken plug-in affects only its own kind."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from noetl.core.model.outcome import ERROR_KINDS, error
from noetl.core.model.tool import Field, ToolCall, ToolSpec, named_input, with_helpers
from noetl.tools import registry as tools


def call(kind: str, **given) -> ToolCall:
    return ToolCall(kind, given, {}, None, "1", "s", "t", "1:s:1:t:1:1", "key")


GREET = """
from noetl.core.model.outcome import ok
from noetl.core.model.tool import Field, ToolSpec

SPEC = ToolSpec(kind="greet", doc="Says hello.", fields={"who": Field("string", "Whom.")}, aliases=("hello",))

async def run(call):
    return ok(f"hello {call.input['who']}")
"""


def test_every_package_is_a_kind_of_the_same_name():
    folder = Path(tools.__file__).parent
    names = {path.parent.name for path in folder.glob("*/spec.py")}
    assert names == set(tools.kinds())
    assert {"noop", "playbook", "workbook"} <= names


def test_knowing_every_kind_imports_no_driver():
    heavy = "{'aiohttp', 'psycopg', 'asyncpg', 'duckdb', 'pyarrow', 'nats', 'obstore', 'cryptography'}"
    probe = f"import sys; from noetl.tools.registry import specs; specs(); print(sorted({heavy} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_every_kind_documents_each_parameter_and_uses_known_shapes():
    for kind, spec in tools.kinds().items():
        assert spec.doc, kind
        for name, field in spec.fields.items():
            assert field.doc, f"{kind}.{name}"
        for name, line in spec.spec_keys.items():
            assert line, f"{kind}.spec.{name}"
        spellings = [word for name, field in spec.fields.items() for word in (name, *field.aliases)]
        assert len(spellings) == len(set(spellings)), f"{kind}: a spelling means two fields"


def test_a_plug_in_from_a_separate_package_is_a_kind_like_any_other(plugins):
    plugins("noetl_greet", GREET, {"greet": "noetl_greet"})
    assert tools.specs()["greet"].fields["who"].type == "string"
    assert tools.specs()["hello"].kind == "greet"
    assert "hello" not in tools.kinds()
    outcome = asyncio.run(tools.load("hello")(call("hello", who="Ada")))
    assert outcome.data == "hello Ada"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import a_library_that_is_not_there", "a_library_that_is_not_there"),
        ("raise SystemExit(3)", "SystemExit"),
        ("x = = 1", "SyntaxError"),
        ("SPEC = 1", "has no SPEC"),
        ("from noetl.core.model.tool import ToolSpec\nSPEC = ToolSpec(kind='broken')", "has no `async def run"),
        (
            "from noetl.core.model.tool import ToolSpec\nSPEC = ToolSpec(kind='noop')\nasync def run(call): ...",
            'declares the kind "noop"',
        ),
    ],
)
def test_a_broken_plug_in_is_named_and_the_others_go_on(plugins, source, said):
    plugins("noetl_broken", source, {"broken": "noetl_broken"})
    plugins("noetl_greet", GREET, {"greet": "noetl_greet"})
    [problem] = tools.problems()
    assert problem.kind == "broken"
    assert "noetl_broken 1.2" in problem.message
    assert said in problem.message
    outcome = asyncio.run(tools.load("broken")(call("broken")))
    assert outcome.error.message == problem.message
    assert asyncio.run(tools.load("greet")(call("greet", who="Bo"))).status == "ok"
    assert asyncio.run(tools.load("noop")(call("noop"))).status == "ok"


@pytest.mark.parametrize(("kind", "said"), [("snowflake", "package noetl-adbc[snowflake]"), ("agent", "noetl.tools")])
def test_a_missing_plug_in_kind_explains_how_to_install_it(kind, said):
    outcome = asyncio.run(tools.load(kind)(call(kind)))
    assert outcome.status == "error"
    assert outcome.error.kind in ERROR_KINDS
    assert said in outcome.error.message and kind in outcome.error.message


def test_an_unknown_kind_lists_the_known_ones():
    outcome = asyncio.run(tools.load("htpp")(call("htpp")))
    assert 'unknown tool kind "htpp"' in outcome.error.message
    assert "noop" in outcome.error.message


def test_aliases_are_read_as_the_field_and_its_name_takes_precedence():
    spec = ToolSpec(kind="k", fields={"url": Field(aliases=("endpoint", "uri")), "data": Field()})
    assert named_input(spec, {"endpoint": "a", "data": 1}) == {"url": "a", "data": 1}
    assert named_input(spec, {"endpoint": "a", "url": "b"}) == {"url": "b"}


def test_helpers_of_a_kind_exist_on_every_outcome():
    spec = ToolSpec(kind="k", helpers={"http": {"status": None, "url": None}})
    outcome = with_helpers(spec, error("connection", "gone", http={"url": "x"}, other={"a": 1}))
    assert outcome.helpers == {"http": {"status": None, "url": "x"}, "other": {"a": 1}}

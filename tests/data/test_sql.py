from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.data.sql import ParameterError, bind, leaves_traces, quote_name, split, steers_transaction, tokens


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("select 1", ["select 1"]),
        ("select 1;", ["select 1"]),
        ("select 1; select 2 ;\n", ["select 1", "select 2"]),
        ("; ;;", []),
        ("-- only; a comment", []),
        ("/* a; /* nested; */ b; */ select 1; -- end; \n", ["/* a; /* nested; */ b; */ select 1"]),
        ("select 'a;b', 'it''s; ok'; select 2", ["select 'a;b', 'it''s; ok'", "select 2"]),
        (r"select E'a\';b'; select 2", [r"select E'a\';b'", "select 2"]),
        (r"select 'a\'; select 2", [r"select 'a\'", "select 2"]),
        ('select "a;b" from "x""y;"; select 2', ['select "a;b" from "x""y;"', "select 2"]),
        (
            "create function f() returns int as $$ begin return 1; end; $$ language plpgsql; select f()",
            ["create function f() returns int as $$ begin return 1; end; $$ language plpgsql", "select f()"],
        ),
        ("do $b$ begin perform ';$$;'; end $b$; select 1", ["do $b$ begin perform ';$$;'; end $b$", "select 1"]),
        ("select a$b$ from t; select 2", ["select a$b$ from t", "select 2"]),
        (
            "create function f() returns int begin atomic select 1; select case when a then 1 end; end; select 2",
            ["create function f() returns int begin atomic select 1; select case when a then 1 end; end", "select 2"],
        ),
        ("select 'open", ["select 'open"]),
        ("begin; insert into t values (1); end; select 1", ["begin", "insert into t values (1)", "end", "select 1"]),
        ("select case when a then 1 end; select 2", ["select case when a then 1 end", "select 2"]),
    ],
)  # fmt: skip
def test_statements_end_where_the_database_ends_them(text: str, statements: list[str]) -> None:
    assert split(text) == statements


def test_a_trigger_of_sqlite_is_one_statement() -> None:
    text = "create temp trigger g after insert on t begin update u set a = 1; delete from v; end; select 1"
    assert split(text, "sqlite") == [text[: text.rindex(";")], "select 1"]


def test_a_trigger_of_postgres_has_no_body() -> None:
    text = "create trigger g before insert on t for each row execute function f(); select 1"
    assert len(split(text)) == 2


@given(st.text(alphabet="a'\"$;-/*%:()\n\\ s1Ee?", max_size=40))
def test_the_pieces_are_the_text(text: str) -> None:
    assert "".join(token.text for token in tokens(text)) == text


def test_named_parameters_are_numbered_once_each() -> None:
    bound = bind("select %(a)s, :b, %(a)s, x::text, '%(a)s :b' -- :b", {"a": 1, "b": 2})
    assert bound.text == "select $1, $2, $1, x::text, '%(a)s :b' -- :b"
    assert bound.values == [1, 2]


def test_a_colon_is_a_parameter_only_where_params_has_its_name() -> None:
    assert bind("select a[1:n], :x, '{\"x\":1}'", {"x": 1}).text == "select a[1:n], $1, '{\"x\":1}'"


def test_positional_parameters_count_over_all_statements() -> None:
    assert bind("select %s, %s", [1, 2, 3]) == ("select $1, $2", [1, 2], frozenset())
    assert bind("select %s", [1, 2, 3], used=2) == ("select $1", [3], frozenset())
    assert bind("select $2, $1, $2", ["a", "b"]) == ("select $1, $2, $1", ["b", "a"], frozenset())


def test_percent_signs_need_no_escape_but_may_have_one() -> None:
    assert bind("select 5 % 2, 'a%' like :x", {"x": "b%"}).text == "select 5 % 2, 'a%' like $1"
    assert bind("select 'a%%' like %(x)s", {"x": "b%"}).text == "select 'a%' like $1"
    assert bind("select 'a%%b'", None).text == "select 'a%%b'"
    assert bind("select 'a%%b', :x", {"x": 1}).text == "select 'a%%b', $1"


def test_casts_to_json_are_recorded() -> None:
    bound = bind("select %(a)s::jsonb, cast(:b as json), :c::text", {"a": [], "b": [], "c": 1})
    assert bound.json == {0, 1}


def test_dialects_have_their_own_marks() -> None:
    assert bind("select ?, ?", [1, 2], "sqlite").text == "select ?1, ?2"
    assert bind("select $a, '$a'", {"a": 1}, "duckdb").text == "select $1, '$a'"
    assert bind("select data ? 'key' from t where a = %s", [1]).text == "select data ? 'key' from t where a = $1"


@pytest.mark.parametrize(
    ("statement", "params", "says"),
    [
        ("select %(x)s", {"y": 1}, r"%\(x\)s; `params` has y"),
        ("select %(x)s", None, "no `params`"),
        ("select %s", {"y": 1}, "positional"),
        ("select %(x)s", [1], "is a list"),
        ("select %s, %s", [1], "has 1 values"),
        ("select $3", [1, 2], "has 2 values"),
        ("select %s", "text", "a mapping or a list, not str"),
    ],
)
def test_wrong_parameters_are_named_in_the_error(statement: str, params: object, says: str) -> None:
    with pytest.raises(ParameterError, match=says):
        bind(statement, params)


def test_names_are_quoted() -> None:
    assert quote_name("public.my table") == '"public"."my table"'
    assert quote_name('"a.b"."c""d"') == '"a.b"."c""d"'


def test_what_statements_do_to_the_session() -> None:
    assert steers_transaction("/* now */ COMMIT")
    assert not steers_transaction("select 1")
    assert leaves_traces("set search_path to x")
    assert leaves_traces("create temp table t (a int)")
    assert leaves_traces("select set_config('a', 'b', false)")
    assert not leaves_traces("-- first\n(select 1)")

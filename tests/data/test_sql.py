from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.data.sql import Dialect, ParameterError, bind, leaves_traces, quote_name, steers_transaction, tokens
from noetl.data.sql.sql_statements import split


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


BODIES = {
    "a block with nested blocks": (
        "create definer=`root`@`localhost` procedure p(in a int)\nbegin\n  declare exit handler for sqlexception "
        "begin rollback; resignal; end;\n  if a > 1 then select if(a > 2, 1, 2); elseif a = 0 then drop table if exists "
        "t; end if;\n  l: loop leave l; end loop l;\n  while a do set a = a - 1; end while;\n  repeat set a = a + 1; "
        "until a > 3 end repeat;\n  case a when 1 then select 1; else begin end; end case;\n  select case when a then 1 "
        "else 2 end, repeat('x;', 2);\nend"
    ),
    "columns with the names of words": (
        "create procedure p() begin insert into t (start, end) values (1, 2); update t set end = 3, `begin;` = 1; end"
    ),
    "a function with a case value": (
        "create function f(a int) returns int deterministic begin return case a when 1 then 2 else 3 end; end"
    ),
    "a trigger": "create trigger g before insert on t for each row follows h begin set new.a = 1; set new.b = 2; end",
    "a body without a block": "create procedure p(a int) sql security invoker if a then select 1; select 2; end if",
    "one statement as the body": "create procedure p() select 1",
    "an event": "create event e on schedule every 1 day do begin delete from t; delete from u; end",
    "a table with an event": "create table t (event int, begin date, end date)",
    "a block of MariaDB": "begin not atomic declare a int; for i in 1 .. 3 do select i; end for; end",
    "a comment that is executed": "/*!40101 set names utf8 */",
}


@pytest.mark.parametrize("body", BODIES)
def test_the_body_of_a_routine_of_mysql_is_one_statement(body: str) -> None:
    text = BODIES[body]
    assert split(f"select 1; {text}; {text.upper()};\nselect 2", "mysql") == [
        "select 1",
        text,
        text.upper(),
        "select 2",
    ]


def test_delimiters_of_the_command_line_of_mysql() -> None:
    body = "create procedure p() begin select '//'; select 1; -- //\n end"
    text = f"select 1;\nDELIMITER //\n{body} //\n\n{body}//\ndelimiter ;\nselect 2; select 3"
    assert split(text, "mysql") == ["select 1", body, body, "select 2", "select 3"]


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("sqlite", "create trigger g after update on t when case new.a when 1 then 2 end begin update u set end = 1; "
         "select case when a then 1 end; insert into v values (1); end"),
        ("sqlite", "create table t (begin text, end text)"),
        ("postgres", "create rule r as on insert to t do also (insert into u values (1); delete from v)"),
        ("postgres", "create function f() returns trigger language plpgsql as $f$ begin return new; end; $f$"),
        ("postgres", "create procedure p() begin atomic insert into t (\"end\") values (1); select 1; end"),
        ("duckdb", "create macro m(a) as table select $$;$$, a"),
        ("ansi", "create procedure p() returns string language sql as $$ begin return 'x'; end; $$"),
        ("ansi", "create procedure d.p() begin if true then select 1; end if; select 2; end"),
    ],
)  # fmt: skip
def test_bodies_of_other_databases_are_one_statement(dialect: Dialect, text: str) -> None:
    assert split(f"{text}; select 1", dialect) == [text, "select 1"]


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


def test_names_that_come_twice_get_a_number_that_no_other_name_has():
    from noetl.data.values import unique_names

    assert unique_names(["a", "a", "b", "a"]) == ["a", "a_2", "b", "a_3"]
    assert unique_names(["a", "a", "a_2", "a"]) == ["a", "a_3", "a_2", "a_4"]

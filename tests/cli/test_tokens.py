"""`noetl token`: created once, listed without their text, revoked."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from noetl.server.http.access import Tokens


def test_a_token_is_created_listed_and_revoked(noetl, tmp_path):
    made = noetl("token", "add", "vera", "--role", "viewer", "--json")
    assert made.code == 0
    caller = Tokens(tmp_path / "home").caller(made.json["token"])
    assert (caller.name, caller.role) == ("vera", "viewer")
    listed = noetl("token", "list", "--json")
    assert listed.json == [{"name": "vera", "role": "viewer"}] and made.json["token"] not in listed.out
    assert noetl("token", "remove", "vera").code == 0
    assert Tokens(tmp_path / "home").caller(made.json["token"]) is None


def test_a_duplicate_name_an_unknown_name_and_an_unknown_role_are_rejected(noetl):
    assert noetl("token", "add", "ann").code == 0
    again = noetl("token", "add", "ann")
    assert again.code == 2 and "a token named 'ann' already exists" in again.err
    assert noetl("token", "add", "bob", "--role", "king").code == 2
    unknown = noetl("token", "remove", "eve")
    assert unknown.code == 2 and "noetl token list" in unknown.err


def test_the_last_admin_token_is_not_revoked_and_the_file_of_a_revoked_one_is_deleted(noetl, tmp_path):
    from noetl.server.http.access import Tokens

    home = tmp_path / "home"
    Tokens.prepare(home)
    refused = noetl("token", "revoke", "admin")
    assert refused.code == 2
    assert "the only admin" in refused.err
    made = noetl("token", "create", "boss", "--role", "admin")
    assert made.out.startswith("noetl_")
    assert noetl("token", "revoke", "admin").code == 0
    assert not (home / "admin.token").exists()
    assert [each["name"] for each in noetl("token", "list", "--json").json] == ["boss"]
    assert noetl("token", "revoke", "nobody").code == 2


def test_tokens_created_at_the_same_time_are_all_stored(tmp_path):
    names = [f"t{number}" for number in range(24)]
    with ThreadPoolExecutor(8) as others:
        texts = list(others.map(lambda name: Tokens(tmp_path).add(name, "viewer"), names))
    assert sorted(token.name for token in Tokens(tmp_path).all()) == sorted(names)
    assert {Tokens(tmp_path).caller(text).name for text in texts} == set(names)
    with ThreadPoolExecutor(4) as others:
        list(others.map(Tokens.prepare, [tmp_path / "new"] * 4))
    assert [token.role for token in Tokens(tmp_path / "new").all()] == ["admin"]

"""The fields of a server from `auth:`: URLs, ports and TLS, with errors that show no password."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest

from noetl.testing import ToolHost
from noetl.tool import BadAuth, flag, port_number, server_fields, tls_context

HOST = ToolHost(credentials={"shop": {"db_host": "db", "db_port": "3307", "db_user": "ann"}})


def fields(auth: Any) -> dict[str, Any]:
    return asyncio.run(server_fields(auth, HOST, schemes=("mysql", "mariadb"), prefixes=("db_",)))


@pytest.mark.parametrize(
    ("auth", "expected"),
    [
        ("shop", {"host": "db", "port": 3307, "user": "ann"}),
        ({"host": "db", "port": 3306, "username": "ann"}, {"host": "db", "port": 3306, "username": "ann", "user": "ann"}),
        (
            "mysql://ann:s%40fe%2F@[::1]:3307/sh%C3%B6p?tls=true",
            {"scheme": "mysql", "host": "::1", "port": 3307, "user": "ann", "password": "s@fe/", "database": "shöp",
             "tls": "true"},
        ),
        ("mariadb+tcp://db", {"scheme": "mariadb", "host": "db"}),
        # What a URL does not contain is taken from the other fields.
        (
            {"url": "mysql://db/shop", "user": "ann", "password": "x"},
            {"url": "mysql://db/shop", "scheme": "mysql", "host": "db", "database": "shop", "user": "ann",
             "password": "x"},
        ),
    ],
)  # fmt: skip
def test_fields(auth: Any, expected: dict[str, Any]) -> None:
    assert fields(auth) == expected


@pytest.mark.parametrize(
    ("auth", "said"),
    [
        ("http://ann:sesame@db", "must be mysql://"),
        ("mysql://ann:sesame@db:99999/x", "invalid host or port"),
        ("mysql://ann:sesame@db:many/x", "invalid host or port"),
        ("mysql://ann:sesame@[::1/x", "invalid host or port"),
        ("mysql://ann:sesame@db/x?ssl-mode=REQUIRED", "unknown option 'ssl-mode'"),
        ({"host": "db", "port": "many", "password": "sesame"}, '`port` must be a number from 1 to 65535, not "many"'),
        ({"host": "db", "port": 0}, "`port`"),
        ({"host": "db", "port": True}, "`port`"),
        ({"host": "db", "port": 3306.5}, "`port`"),
        ({"host": "db", "port": "9" * 5000}, "`port`"),
        ({"host": "db", "port": {"a": 1}}, "`port`"),
    ],
)
def test_what_is_wrong_is_said_without_the_password(auth: Any, said: str) -> None:
    with pytest.raises(BadAuth) as wrong:
        fields(auth)
    assert said in str(wrong.value)
    assert "sesame" not in str(wrong.value)


def test_flags_and_ports_are_also_text() -> None:
    assert flag({"tls": "True"}, "tls", False) is True
    assert flag({"tls": "no"}, "tls", True) is False
    assert flag({}, "tls", True) is True
    assert port_number(" 22 ") == 22
    with pytest.raises(BadAuth, match='`tls` of the connection must be true or false, not "perhaps"'):
        flag({"tls": "perhaps"}, "tls", False)


def test_tls(tmp_path: Path) -> None:
    assert tls_context({}) is None
    assert tls_context({"tls": "false"}) is None
    verified, unverified = tls_context({"tls": True}), tls_context({"ssl": "yes", "verify": "false"})
    assert verified is not None
    assert verified.verify_mode is ssl.CERT_REQUIRED
    assert unverified is not None
    assert unverified.verify_mode is ssl.CERT_NONE
    (tmp_path / "ca.pem").write_text("no certificate")
    for wrong, said in (
        (str(tmp_path / "none.pem"), "none.pem"),
        (str(tmp_path / "ca.pem"), "PEM"),
        ("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n", "PEM"),
    ):
        with pytest.raises(BadAuth, match=f"`ca` of the connection .*{said}"):
            tls_context({"tls": True, "ca": wrong})

from __future__ import annotations

import pytest

from noetl.core.model.secret_names import is_secret_name, mask_secret_names


@pytest.mark.parametrize(
    "name",
    [
        "api_token",
        "apiKey",
        "x-api-key",
        "AccessKey",
        "pwd",
        "passphrase",
        "Set-Cookie",
        "PASSWORD",
        "db_passwd",
        "client_secret",
        "private-key".replace("-", "_"),
    ],
)
def test_names_of_secrets_are_recognised(name: str):
    assert is_secret_name(name)


def test_texts_under_secret_names_are_masked_at_every_depth():
    data = {"api_token": "a", "rows": [{"password": "b", "n": 1}], "token_count": 3, "token": "", "plain": "c"}
    assert mask_secret_names(data) == {
        "api_token": "***", "rows": [{"password": "***", "n": 1}], "token_count": 3, "token": "", "plain": "c",
    }  # fmt: skip


def test_numbers_under_names_of_passwords_are_masked_and_counts_are_not():
    data = {"password": 12345678, "api_key": [1.5], "max_tokens": 4096, "secret": True}
    assert mask_secret_names(data) == {"password": "***", "api_key": ["***"], "max_tokens": 4096, "secret": True}


def test_data_without_secrets_is_returned_as_it_is():
    data = {"a": [{"b": 1}], "c": "d"}
    assert mask_secret_names(data) is data

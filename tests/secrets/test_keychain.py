"""Keychain entries of every kind: values, names of names, and errors that name what is missing."""

from __future__ import annotations

import asyncio
import json

import pytest
from managers import managers

from noetl.core.model.playbook import KeychainEntry
from noetl.errors import SecretUnavailable
from noetl.runtime.resources import close_loop_resources
from noetl.secrets.keychain import InstallationKeychain, kind_of


def entry(name, kind, **fields):
    return KeychainEntry(name=name, kind=kind, fields=fields)


def resolve(*entries, names=None, keychain=None, environment=None, workload=None, file="", **policy):
    """The values of all entries (or of `names`), in a loop of its own."""

    async def once():
        chain = keychain or InstallationKeychain(environment=environment or {}, **policy)
        try:
            return await chain.resolve(entries, names or [each.name for each in entries], workload=workload, file=file)
        finally:
            await close_loop_resources()

    return asyncio.run(once())


def reasons(*entries, **others):
    with pytest.raises(SecretUnavailable) as missing:
        resolve(*entries, **others)
    return missing.value.reasons


# ── env, file, static, bearer ───────────────────────────────────────────────────────────


def test_env_gives_one_value_or_a_mapping():
    environment = {"DB_PASSWORD": "pw", "DB_USER": "me", "api-key": "k"}
    values = resolve(
        entry("password", "env", var="DB_PASSWORD"),
        entry("db", "env", vars={"user": "DB_USER", "password": "DB_PASSWORD"}),
        entry("db_user", "env"),
        entry("api-key", "env"),
        environment=environment,
    )
    assert values == {
        "password": "pw",
        "db": {"user": "me", "password": "pw"},
        "db_user": "me",
        "api-key": "k",
    }


def test_a_missing_variable_is_named():
    assert reasons(entry("x", "env", var="NOPE")) == {
        "x": "the environment variable NOPE is not set (.env is read for NOETL_* settings only)"
    }
    assert "A1, A2" in reasons(entry("x", "env", vars={"a": "A1", "b": "A2"}))["x"]


def test_settings_of_the_installation_are_not_readable_as_secrets():
    environment = {"NOETL_SECRET_KEY": "master", "OTHER": "o"}
    assert "is not allowed" in reasons(entry("x", "env", var="NOETL_SECRET_KEY"), environment=environment)["x"]
    denied = reasons(entry("x", "env", var="OTHER"), environment=environment, allows_variable=lambda name: False)
    assert "is not allowed" in denied["x"]


def test_a_file_is_text_json_or_yaml_beside_the_playbook(tmp_path):
    (tmp_path / "token.txt").write_text("abc\n")
    (tmp_path / "c.json").write_text('{"user": "u", "port": 5}')
    (tmp_path / "c.yaml").write_text("value: just this\n")
    values = resolve(
        entry("text", "file", path="token.txt"),
        entry("json", "file", path=str(tmp_path / "c.json"), format="json"),
        entry("yaml", "file", path="./c.yaml", format="yaml"),
        file=str(tmp_path / "play.yaml"),
    )
    assert values == {"text": "abc", "json": {"user": "u", "port": 5}, "yaml": "just this"}


def test_files_that_cannot_be_used_are_named_without_their_content(tmp_path):
    (tmp_path / "bad.json").write_text('{"password": "hunter2"')
    (tmp_path / "latin").write_bytes(b"\xff\xfe\xfd")
    found = reasons(
        entry("a", "file", path="none.txt"),
        entry("b", "file", path="bad.json", format="json"),
        entry("c", "file", path="latin"),
        entry("d", "file", path="latin", format="toml"),
        entry("e", "file"),
        file=str(tmp_path / "p.yaml"),
    )
    assert "none.txt: No such file" in found["a"]
    assert "not valid JSON" in found["b"] and "hunter2" not in str(found)
    assert "not UTF-8" in found["c"]
    assert "`path`" in found["e"]
    assert "is not allowed" in reasons(entry("a", "file", path="x"), allows_file=lambda path: False)["a"]


def test_static_and_bearer():
    values = resolve(
        entry("s", "static", value="v"),
        entry("m", "static", value={"a": 1}),
        entry("one", "static", value={"value": "x"}),
        entry("b", "bearer", token="t"),
        entry("b2", "bearer", token="s"),
    )
    assert values == {"s": "v", "m": {"a": 1}, "one": "x", "b": "t", "b2": "v"}


# ── names of names ──────────────────────────────────────────────────────────────────────


def test_templates_of_fields_see_the_workload_and_other_entries():
    values = resolve(
        entry("token", "bearer", token="{{ keychain.base }}-{{ workload.tenant }}"),
        entry("base", "static", value="b"),
        workload={"tenant": "acme"},
    )
    assert values["token"] == "b-acme"


def test_a_template_that_fails_names_the_entry_and_the_field():
    assert "cannot render `var`" in reasons(entry("x", "env", var="{{ workload.nope }}"))["x"]


def test_a_circular_reference_is_reported_with_its_path():
    found = reasons(entry("a", "bearer", token="b"), entry("b", "bearer", token="a"), names=["a"])
    assert any("a -> b -> a" in reason for reason in found.values())


def test_a_failure_of_a_referenced_entry_names_both_entries():
    found = reasons(entry("a", "bearer", token="b"), entry("b", "env", var="NOPE"), names=["a"])
    assert found == {
        "a": 'depends on "b": the environment variable NOPE is not set (.env is read for NOETL_* settings only)'
    }


def test_all_missing_names_are_reported_together():
    with pytest.raises(SecretUnavailable) as missing:
        resolve(
            entry("a", "env", var="A"),
            entry("b", "static", value=1),
            entry("c", "nonsense"),
            names=["a", "b", "c", "d"],
        )
    assert set(missing.value.reasons) == {"a", "c", "d"}
    assert 'unknown keychain kind "nonsense"' in str(missing.value)
    assert "noetl credential set d" in str(missing.value)


# ── stored credentials ──────────────────────────────────────────────────────────────────


class GivenCredentials:
    def __init__(self, credentials):
        self._credentials = credentials

    async def get(self, name):
        return self._credentials.get(name)


STORE = {"pg": {"db_host": "h", "db_password": "p"}, "key": {"value": "only"}}


def test_credentials_are_read_by_entry_by_alias_and_without_an_entry():
    chain = InstallationKeychain(GivenCredentials(STORE), environment={})
    values = resolve(
        entry("pg", "postgres_credential"),
        entry("main", "credential", credential="pg"),
        entry("k", "credential", credential="key"),
        names=["pg", "main", "k", "key"],
        keychain=chain,
    )
    assert values["pg"] == values["main"] == STORE["pg"]
    assert values["k"] == values["key"] == "only"


def test_a_credential_that_is_not_stored_is_named():
    chain = InstallationKeychain(GivenCredentials({}), environment={})
    assert '"other"' in reasons(entry("x", "credential", credential="other"), keychain=chain)["x"]
    assert "noetl credential set x" in reasons(entry("x", "snowflake_credential"), keychain=chain)["x"]


def test_kinds_and_their_aliases():
    assert kind_of("postgres_credential") == "credential"
    assert kind_of("secrets") == "secret_manager"
    assert kind_of("env") == "env"
    assert kind_of("magic") is None


# ── secret managers ─────────────────────────────────────────────────────────────────────


def with_managers(work):
    async def run():
        async with managers() as made:
            try:
                return await work(made)
            finally:
                await close_loop_resources()

    return asyncio.run(run())


async def read(made, *entries, environment=None, names=None, **policy):
    chain = InstallationKeychain(environment=environment or {}, **policy)
    return await chain.resolve(entries, names or [each.name for each in entries])


async def refused(made, *entries, **others):
    with pytest.raises(SecretUnavailable) as missing:
        await read(made, *entries, **others)
    return missing.value.reasons


def test_vault_reads_both_versions_of_its_key_value_store():
    async def work(made):
        common = {"provider": "vault", "url": made.base, "auth": {"token": "root"}}
        values = await read(
            made,
            entry("db", "secret_manager", secret="secret/app/db", **common),
            entry("first", "secret_manager", secret="secret/app/db", version=1, **common),
            entry("field", "secret_manager", secret="secret/app/db#password", **common),
            entry("single", "secret_manager", **common),
            entry("kv1", "secret_manager", secret="old/thing", **common),
            entry("mounted", "secret_manager", secret="api", mount="team", **common),
            entry("several", "secrets", map={"a": "single", "b": "secret/app/db#user"}, **common),
        )
        assert values == {
            "db": {"user": "app", "password": "pw-2"},
            "first": {"user": "app", "password": "pw-1"},
            "field": "pw-2",
            "single": "only-one",
            "kv1": "kv1-value",
            "mounted": {"token": "team-token"},
            "several": {"a": "only-one", "b": "app"},
        }

    with_managers(work)


@pytest.mark.parametrize(
    "auth",
    [
        {"role_id": "r", "secret_id": "s"},
        {"username": "ada", "password": "p"},
        {"role": "app", "jwt": "j"},
        "vault_token",
        {"token": "vault_token"},
    ],
)
def test_vault_accepts_every_login_method(auth):
    async def work(made):
        one = entry("single", "secret_manager", provider="vault", url=made.base, auth=auth)
        token = entry("vault_token", "static", value="root")
        assert (await read(made, one, token, names=["single"]))["single"] == "only-one"

    with_managers(work)


def test_vault_is_configured_by_the_variables_of_its_own_tools():
    async def work(made):
        environment = {"VAULT_ADDR": made.base + "/", "VAULT_TOKEN": "root", "VAULT_NAMESPACE": "ns"}
        one = entry("single", "secret_manager")
        # The installation's own Vault may have a private address; an address in a playbook is subject to the policy.
        values = await read(made, one, environment=environment, allows_address=lambda address: False)
        assert values["single"] == "only-one"
        assert made.requests[-1][2]["X-Vault-Namespace"] == "ns"
        theirs = entry("single", "secret_manager", provider="vault", url=made.base, auth={"token": "root"})
        assert "policy" in (await refused(made, theirs, allows_address=lambda address: False))["single"]
        # The installation's token is not sent to an address that a playbook names.
        elsewhere = entry("single", "secret_manager", provider="vault", url=made.base)
        count = len(made.requests)
        assert "no Vault credentials" in (await refused(made, elsewhere, environment=environment))["single"]
        # Nor is its service account.
        role = entry("single", "secret_manager", provider="vault", url=made.base, auth={"role": "r"})
        assert "is not sent to" in (await refused(made, role, environment=environment))["single"]
        assert len(made.requests) == count

    with_managers(work)


def test_vault_errors_name_the_cause():
    async def work(made):
        common = {"provider": "vault", "url": made.base}
        found = await refused(
            made,
            entry("none", "secret_manager", secret="secret/nope", auth={"token": "root"}, **common),
            entry("gone", "secret_manager", secret="secret/gone", auth={"token": "root"}, **common),
            entry("version", "secret_manager", secret="secret/app/db", version="9", auth={"token": "root"}, **common),
            entry("denied", "secret_manager", secret="secret/app/db", auth={"token": "wrong-token"}, **common),
            entry("role", "secret_manager", secret="x", auth={"role_id": "r", "secret_id": "wrong-secret"}, **common),
            entry("field", "secret_manager", secret="secret/app/db#pw", auth={"token": "root"}, **common),
            entry("where", "secret_manager", provider="vault"),
            entry("who", "secret_manager", provider="lastpass"),
            entry("nobody", "secret_manager"),
            entry("dead", "secret_manager", provider="vault", url="http://127.0.0.1:1", auth={"token": "t"}),
        )
        assert 'no secret "secret/nope"' in found["none"]
        assert 'no secret "secret/gone"' in found["gone"]
        assert "version 9" in found["version"]
        assert "HTTP 403 permission denied" in found["denied"]
        assert "invalid role or secret ID" in found["role"]
        assert 'no field "pw"; it has user, password' in found["field"]
        assert "VAULT_ADDR" in found["where"]
        assert "lastpass" in found["who"]
        assert "no `provider` is given" in found["nobody"]
        assert "cannot connect" in found["dead"]
        assert "wrong-token" not in str(found) and "wrong-secret" not in str(found) and "pw-2" not in str(found)

    with_managers(work)


def test_values_of_a_manager_are_cached():
    async def work(made):
        chain = InstallationKeychain(environment={})
        one = entry("single", "secret_manager", provider="vault", url=made.base, auth={"token": "root"})
        for _ in range(5):
            await chain.resolve([one], ["single"])
        assert len(made.requests) == 1
        await chain.close()
        await chain.resolve([one], ["single"])
        assert len(made.requests) == 2

    with_managers(work)


def test_google_by_token_and_by_the_key_of_a_service_account(tmp_path, monkeypatch):
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(65537, 2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()

    async def work(made):
        made.public_key = key.public_key()
        account = {"type": "service_account", "client_email": "robot@p1", "private_key": pem, "project_id": "p1"}
        account["token_uri"] = f"{made.base}/google-token"
        (tmp_path / "account.json").write_text(json.dumps(account))
        common = {"provider": "gcp", "url": made.base}
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "account.json"))
        values = await read(
            made,
            entry("db", "secret_manager", auth={"token": "google-token"}, project="p1", **common),
            entry("third", "secret_manager", secret="projects/p1/secrets/db/versions/3", auth=account, **common),
            entry("raw", "secret_manager", provider="gcp"),
            environment={"CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER": made.base},
        )
        assert values == {"db": {"password": "g-pw"}, "third": "third", "raw": "/wA="}
        found = await refused(
            made,
            entry("none", "secret_manager", project="p1", auth={"token": "google-token"}, **common),
            entry("denied", "secret_manager", project="p1", auth={"token": "wrong"}, **common),
            entry("bad", "secret_manager", auth={**account, "private_key": "nonsense"}, **common),
            entry("form", "secret_manager", project="p1", auth={"client_email": "robot@p1"}, **common),
            entry("which", "secret_manager", auth={"token": "google-token"}, **common),
        )
        assert "no " in found["none"] and "UNAUTHENTICATED" in found["denied"]
        assert "not a PEM key" in found["bad"] and "nonsense" not in found["bad"]
        assert "key of a service account" in found["form"] and "GOOGLE_CLOUD_PROJECT" in found["which"]

    with_managers(work)


def test_azure_by_client_credentials():
    async def work(made):
        auth = {"tenant_id": "t", "client_id": "c", "client_secret": "right", "authority": made.base}
        common = {"provider": "azure", "url": made.base, "auth": auth}
        values = await read(
            made,
            entry("db", "secret_manager", **common),
            entry("v2", "secret_manager", secret="db", version="v2", **common),
        )
        assert values == {"db": "azure-newest", "v2": "azure-v2"}
        assert made.tokens == 1
        found = await refused(
            made,
            entry("none", "secret_manager", **common),
            entry("wrong", "secret_manager", **{**common, "auth": {**auth, "client_secret": "bad-secret"}}),
            entry("how", "secret_manager", **{**common, "auth": {"client_secret": "bad-secret"}}),
        )
        assert 'no secret "none"' in found["none"] and "no such client" in found["wrong"]
        assert "`auth.tenant_id` is missing" in found["how"] and "bad-secret" not in str(found)

    with_managers(work)


def test_aws_against_a_server_of_its_api(s3):
    auth = {name: s3[name] for name in ("access_key_id", "secret_access_key")}

    async def work(made):
        from noetl.connections.http.client import Request, exchange

        async def create(name, **value):
            body = json.dumps({"Name": name, **value, "ClientRequestToken": "a" * 32}).encode()
            headers = {"Content-Type": "application/x-amz-json-1.1", "X-Amz-Target": "secretsmanager.CreateSecret"}
            headers["Authorization"] = "AWS4-HMAC-SHA256 Credential=k/20260101/us-east-1/secretsmanager/aws4_request"
            async with exchange(Request("POST", s3["endpoint"], headers, body=lambda: body)) as answer:
                assert answer.status == 200, await answer.read()

        await create("keychain/db", SecretString='{"user": "u", "password": "aws-pw"}')
        await create("keychain/plain", SecretString="just text")
        common = {"provider": "aws", "url": s3["endpoint"], "region": "us-east-1", "auth": auth}
        values = await read(
            made,
            entry("db", "secret_manager", secret="keychain/db", **common),
            entry("pw", "secret_manager", secret="keychain/db#password", **common),
            entry("plain", "secret_manager", secret="keychain/plain", version="AWSCURRENT", **common),
        )
        assert values == {"db": {"user": "u", "password": "aws-pw"}, "pw": "aws-pw", "plain": "just text"}
        found = await refused(
            made,
            entry("none", "secret_manager", **common),
            entry("half", "secret_manager", provider="aws", region="us-east-1", auth={"access_key_id": "k"}),
            entry("where", "secret_manager", provider="aws"),
        )
        assert 'no secret "none"' in found["none"]
        assert "`auth.secret_access_key` is missing" in found["half"] and "AWS_REGION" in found["where"]

    with_managers(work)


def test_a_file_or_a_folder_can_replace_a_manager(tmp_path):
    (tmp_path / "secrets.yaml").write_text("db: {password: f-pw}\napi.key: dotted\n")
    (tmp_path / "mounted").mkdir()
    (tmp_path / "mounted" / "token").write_text("from-a-mount\n")
    at = {"file": str(tmp_path / "p.yaml")}
    one = {"provider": "file", "path": "secrets.yaml"}
    values = resolve(
        entry("db", "secret_manager", **one),
        entry("inner", "secret_manager", secret="db.password", **one),
        entry("dotted", "secret_manager", secret="api.key", **one),
        entry("token", "secret_manager", provider="file", path="mounted"),
        **at,
    )
    assert values == {"db": {"password": "f-pw"}, "inner": "f-pw", "dotted": "dotted", "token": "from-a-mount"}
    found = reasons(
        entry("none", "secret_manager", **one),
        entry("out", "secret_manager", provider="file", path="mounted", secret="../secrets.yaml"),
        **at,
    )
    assert 'no secret "none"' in found["none"] and "outside of the folder" in found["out"]


# ── oauth2 ──────────────────────────────────────────────────────────────────────────────


def test_oauth2_caches_a_token_and_renews_it_before_it_expires():
    async def work(made):
        def api(life, **more):
            return entry("api", "oauth2", token_url=f"{made.base}/token?life={life}", client_id="client", **more)

        secret = entry("client_secret_entry", "static", value="right")
        lasting = api(3600, client_secret="client_secret_entry", scope=["a", "b"])
        chain = InstallationKeychain(environment={})
        values = await asyncio.gather(*(chain.resolve([lasting, secret], ["api"]) for _ in range(20)))
        assert {value["api"] for value in values} == {"tok-1"} and made.tokens == 1
        assert made.requests[-1][1]["scope"] == "a b"
        # A life shorter than the margin: used for nine tenths of it, then fetched again.
        brief = api(0.05, client_secret="right")
        first = await chain.resolve([brief], ["api"])
        await asyncio.sleep(0.06)
        assert (await chain.resolve([brief], ["api"])) != first

    with_managers(work)


def test_oauth2_takes_basic_authentication_and_older_spellings():
    async def work(made):
        values = await read(
            made,
            entry(
                "a",
                "oauth2",
                token_url=f"{made.base}/token",
                client_id="client",
                client_secret="right",
                client_auth="basic",
            ),
            entry("b", "oauth2", endpoint=f"{made.base}/token", data={"client_id": "c", "client_secret": "right"}),
        )
        assert set(values.values()) == {"tok-1", "tok-2"}

    with_managers(work)


def test_oauth2_errors_name_the_cause_and_no_secret():
    async def work(made):
        found = await refused(
            made,
            entry("wrong", "oauth2", token_url=f"{made.base}/token", client_id="c", client_secret="bad-secret"),
            entry("less", "oauth2", token_url=f"{made.base}/token", client_id="c"),
            entry("url", "oauth2", client_id="c", client_secret="s"),
            entry("dead", "oauth2", token_url="http://127.0.0.1:1/t", client_id="c", client_secret="bad-secret"),
        )
        assert "no such client" in found["wrong"] and "`client_secret`" in found["less"]
        assert "`endpoint`" in found["url"] and "cannot connect" in found["dead"]
        assert "bad-secret" not in str(found)

    with_managers(work)


def test_values_of_a_secret_manager_are_forgotten():
    """The fields of an entry may depend on the workload, so that every execution has a key of its own."""
    chain = InstallationKeychain()
    for number in range(10_000):
        chain.keep(b"%d" % number, "value", 1000.0 + number)
    assert len(chain._cache) <= 120

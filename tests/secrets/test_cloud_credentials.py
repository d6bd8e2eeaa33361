"""Secret managers with the credential chains of the cloud libraries, against fake metadata endpoints on loopback.

The libraries read the environment of their process, some of it at import, so each case runs in a process of its own.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

CHILD = """
import asyncio, json, sys
for name in json.loads(sys.argv[2]):
    sys.modules[name] = None
from noetl.core.model.playbook import KeychainEntry
from noetl.errors import SecretUnavailable
from noetl.runtime.resources import close_loop_resources
from noetl.secrets.keychain import InstallationKeychain

async def main():
    entry = KeychainEntry(name="db", kind="secret_manager", fields=json.loads(sys.argv[1]))
    try:
        return await InstallationKeychain().resolve([entry], ["db"])
    except SecretUnavailable as missing:
        return missing.reasons
    finally:
        await close_loop_resources()

print(json.dumps(asyncio.run(main())))
"""

EXPIRES = (datetime.now(UTC) + timedelta(hours=6)).strftime("%Y-%m-%dT%H:%M:%SZ")


class Cloud:
    """Answers requests by path prefix; `requests` has every (method, path, headers, body)."""

    def __init__(self):
        self.requests = []
        self.routes = {}
        cloud = self

        class Handler(BaseHTTPRequestHandler):
            def _handle(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                cloud.requests.append((self.command, self.path, dict(self.headers), body))
                found = next((cloud.routes[key] for key in cloud.routes if self.path.startswith(key)), None)
                reply = found(self.path, self.headers, body) if callable(found) else found
                data = (reply if isinstance(reply, str) else json.dumps(reply)).encode()
                self.send_response(404 if found is None else 200)
                self.send_header("Metadata-Flavor", "Google")
                self.send_header("Content-Type", "text/plain" if isinstance(reply, str) else "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = _handle

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self.server.server_port}"
        self.url = f"http://{self.host}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def cloud():
    made = Cloud()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def resolve(tmp_path):
    def run(environment, *, absent=(), **fields):
        kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        isolated = {"HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true", "NO_GCE_CHECK": "true"}
        done = subprocess.run(
            [sys.executable, "-c", CHILD, json.dumps(fields), json.dumps(absent)],
            env={**kept, **isolated, **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["db"]

    return run


# ── AWS ─────────────────────────────────────────────────────────────────────────────────


def secrets_manager(key, secret, token):
    """Accepts only a valid signature with these keys."""

    def reply(path, headers, body):
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials

        authorization = headers["Authorization"]
        signed = re.search("SignedHeaders=([^,]+)", authorization)[1].split(";")
        request = AWSRequest("POST", f"http://{headers['Host']}{path}", {name: headers[name] for name in signed}, body)
        request.context["timestamp"] = headers["X-Amz-Date"]
        auth = SigV4Auth(Credentials(key, secret, token), "secretsmanager", "eu-west-1")
        signature = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
        if f"Credential={key}/" not in authorization or f"Signature={signature}" not in authorization:
            return {"__type": "UnrecognizedClientException"}
        return {"SecretString": '{"password": "aws-pw"}'}

    return reply


def test_aws_uses_the_instance_role(cloud, resolve):
    folder = "/latest/meta-data/iam/security-credentials/"
    keys = {"AccessKeyId": "ASIAROLE", "SecretAccessKey": "role-secret", "Token": "role-token", "Code": "Success"}
    cloud.routes = {
        "/latest/api/token": "imds-token",
        f"{folder}app": {**keys, "Type": "AWS-HMAC", "LastUpdated": EXPIRES, "Expiration": EXPIRES},
        folder: "app",
        "/": secrets_manager("ASIAROLE", "role-secret", "role-token"),
    }
    environment = {
        "AWS_REGION": "eu-west-1",
        "AWS_EC2_METADATA_DISABLED": "false",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": cloud.url,
        "AWS_ENDPOINT_URL_SECRETS_MANAGER": cloud.url,
    }
    assert resolve(environment, provider="aws") == {"password": "aws-pw"}
    assert cloud.requests[-1][2]["X-Amz-Security-Token"] == "role-token"


def test_aws_uses_the_web_identity_of_a_service_account(cloud, resolve, tmp_path):
    token = tmp_path / "token"
    token.write_text("projected-token")
    namespace = 'xmlns="https://sts.amazonaws.com/doc/2011-06-15/"'

    def answer(path, headers, body):
        if "X-Amz-Target" in headers:
            return secrets_manager("ASIAWEB", "web-secret", "web-token")(path, headers, body)
        form = parse_qs(body.decode())
        assert form["Action"] == ["AssumeRoleWithWebIdentity"] and form["WebIdentityToken"] == ["projected-token"]
        return (
            f"<AssumeRoleWithWebIdentityResponse {namespace}><AssumeRoleWithWebIdentityResult><Credentials>"
            "<AccessKeyId>ASIAWEB</AccessKeyId><SecretAccessKey>web-secret</SecretAccessKey>"
            f"<SessionToken>web-token</SessionToken><Expiration>{EXPIRES}</Expiration></Credentials>"
            "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
        )

    cloud.routes = {"/": answer}
    environment = {
        "AWS_REGION": "eu-west-1",
        "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/app",
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(token),
        "AWS_ENDPOINT_URL": cloud.url,
    }
    assert resolve(environment, provider="aws") == {"password": "aws-pw"}


def test_aws_uses_keys_and_region_of_a_profile(cloud, resolve, tmp_path):
    config = tmp_path / "config"
    config.write_text(
        "[profile team]\nregion = eu-west-1\naws_access_key_id = AKIATEAM\naws_secret_access_key = team-secret\n"
    )
    cloud.routes = {"/": secrets_manager("AKIATEAM", "team-secret", None)}
    environment = {"AWS_CONFIG_FILE": str(config), "AWS_PROFILE": "team", "AWS_ENDPOINT_URL": cloud.url}
    assert resolve(environment, provider="aws") == {"password": "aws-pw"}


# ── Google ──────────────────────────────────────────────────────────────────────────────


def secret_manager(path, headers, body):
    if headers.get("Authorization") != "Bearer metadata-token" or "projects/p1/secrets/db" not in path:
        return {}
    return {"payload": {"data": base64.b64encode(b'{"password": "g-pw"}').decode()}}


def test_google_uses_the_metadata_server(cloud, resolve):
    account = "/computeMetadata/v1/instance/service-accounts/default"
    cloud.routes = {
        f"{account}/token": {"access_token": "metadata-token", "expires_in": 3599, "token_type": "Bearer"},
        account: {"email": "robot@p1", "scopes": [], "aliases": ["default"]},
        "/computeMetadata/v1/project/project-id": "p1",
        "/computeMetadata/v1/universe": "googleapis.com",
        "/v1/projects": secret_manager,
        "/": "ok",
    }
    environment = {
        "GCE_METADATA_HOST": cloud.host,
        "GCE_METADATA_IP": cloud.host,
        "NO_GCE_CHECK": "false",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER": cloud.url,
    }
    assert resolve(environment, provider="gcp") == {"password": "g-pw"}


# ── Azure ───────────────────────────────────────────────────────────────────────────────


def test_azure_uses_the_managed_identity(cloud, resolve):
    def identity(path, headers, body):
        assert headers["X-IDENTITY-HEADER"] == "header"
        assert parse_qs(urlsplit(path).query)["resource"] == ["https://vault.azure.net"]
        return {"access_token": "identity-token", "expires_on": "4102444800", "resource": "r", "token_type": "Bearer"}

    def vault(path, headers, body):
        return {"value": "azure-pw"} if headers.get("Authorization") == "Bearer identity-token" else {}

    cloud.routes = {"/identity": identity, "/secrets/db/": vault}
    environment = {
        "IDENTITY_ENDPOINT": f"{cloud.url}/identity",
        "IDENTITY_HEADER": "header",
        "AZURE_KEY_VAULT_URL": cloud.url,
    }
    assert resolve(environment, provider="azure") == "azure-pw"


# ── errors ──────────────────────────────────────────────────────────────────────────────

WITHOUT = [
    ("aws", {"AWS_REGION": "eu-west-1"}, {}, "no AWS credentials: give `auth`"),
    ("gcp", {}, {"project": "p1"}, "no Google credentials: give `auth`"),
    (
        "azure",
        {"AZURE_TOKEN_CREDENTIALS": "EnvironmentCredential", "AZURE_KEY_VAULT_URL": "http://127.0.0.1:1"},
        {},
        "no Azure credentials: give `auth`",
    ),
]


@pytest.mark.parametrize(("provider", "environment", "fields", "message"), WITHOUT, ids=["aws", "gcp", "azure"])
def test_missing_credentials_are_reported_with_the_remedy(resolve, provider, environment, fields, message):
    reason = resolve(environment, provider=provider, **fields)
    assert reason.startswith(message) and "\n" not in reason


@pytest.mark.parametrize(
    ("provider", "absent", "fields"),
    [
        ("aws", "botocore", {"region": "eu-west-1"}),
        ("aws", "botocore", {"region": "eu-west-1", "auth": {"access_key_id": "a", "secret_access_key": "s"}}),
        ("gcp", "google.auth", {"project": "p1"}),
        ("azure", "azure.identity", {"url": "https://v.vault.azure.net"}),
    ],
)
def test_a_missing_library_is_one_line_with_the_pip_command(resolve, provider, absent, fields):
    expected = f"provider {provider} needs a library that is not installed: pip install 'noetl-engine[{provider}]'"
    assert resolve({}, absent=[absent], provider=provider, **fields) == expected


@pytest.mark.parametrize(
    ("provider", "url"),
    [
        ("aws", "https://secretsmanager.eu-west-1.amazonaws.com.example.org"),
        ("aws", "https://example.org/secretsmanager.eu-west-1.amazonaws.com"),
        ("gcp", "https://secretmanager.googleapis.com@example.org"),
        ("gcp", "http://secretmanager.googleapis.com"),
        ("azure", "https://example.org"),
        ("azure", "https://vault.azure.net.example.org"),
    ],
)
def test_own_credentials_are_not_sent_to_an_address_that_a_playbook_names(resolve, provider, url):
    environment = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "eu-west-1"}
    reason = resolve(environment, provider=provider, url=url, project="p1")
    assert (
        reason.startswith(f"{url} is not an address of ") and "credentials of this installation are not sent" in reason
    )


def test_a_region_cannot_change_the_host(resolve):
    environment = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s"}
    assert resolve(environment, provider="aws", region="example.org/") == '"example.org/" is not an AWS region'

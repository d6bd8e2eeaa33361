"""HashiCorp Vault and compatible servers: key-value secrets engine, versions 2 and 1.

`secret: mount/path#field`; the mount is `secret` if there is no slash. Authentication: a token, an AppRole,
a user and password, or a Kubernetes service account.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from noetl.secrets.source import Reply, SecretRequest, one_or_all, send


async def read(request: SecretRequest, secret: str, version: str | None) -> Any:
    """The fields of the secret, or its single value."""
    auth = await request.mapping("auth")
    written = request.fields.get("url") or request.fields.get("address") or auth.get("url") or auth.get("address")
    address = str(written or request.environment.get("VAULT_ADDR") or "").rstrip("/")
    if not address:
        raise request.unavailable("no Vault address: give `url`, or set VAULT_ADDR", "schema")
    headers = {"Accept": "application/json"}
    namespace = request.fields.get("namespace") or auth.get("namespace") or request.environment.get("VAULT_NAMESPACE")
    if namespace:
        headers["X-Vault-Namespace"] = str(namespace)
    vault = _Vault(request, address, headers, trusted=not written)
    headers["X-Vault-Token"] = await _token(vault, auth)
    mount, rest = _split_path(secret, request.fields.get("mount"))
    query = f"?version={quote(version)}" if version else ""
    status, reply = await vault.send("GET", f"{mount}/data/{quote(rest)}{query}")
    found = reply.get("data")
    if status == 200 and isinstance(found, Mapping) and isinstance(found.get("data"), Mapping):
        return one_or_all(found["data"])
    if status in (404, 405) and not version:
        status, kv1 = await vault.send("GET", f"{mount}/{quote(rest)}")
        found = kv1.get("data")
        if status == 200 and isinstance(found, Mapping):
            return one_or_all(found)
    if status in (200, 404):  # 200 without data: the version was deleted
        raise request.unavailable(f'Vault has no secret "{mount}/{rest}"' + (f" version {version}" if version else ""))
    raise request.unavailable(f'Vault denied access to "{mount}/{rest}": HTTP {status} {_errors(reply)}'.rstrip())


class _Vault(NamedTuple):
    """The address of a Vault server and the headers of every request."""

    request: SecretRequest
    address: str
    headers: dict[str, str]
    trusted: bool

    async def send(self, method: str, path: str, form: Mapping[str, Any] | None = None) -> Reply:
        body = None if form is None else msgspec.json.encode(form)
        url = f"{self.address}/v1/{path}"
        return await send(self.request, method, url, self.headers, body=body, service="Vault", trusted=self.trusted)


def _split_path(secret: str, mount: Any) -> tuple[str, str]:
    """The mount and the path below it."""
    path = secret.strip("/")
    if mount:
        return str(mount).strip("/"), path
    if "/" not in path:
        return "secret", path
    first, _, rest = path.partition("/")
    return first, rest.removeprefix("data/")


async def _token(vault: _Vault, auth: Mapping[str, Any]) -> str:
    """A token: given, or by logging in."""
    token = auth.get("token") or auth.get("value")
    if token:
        return str(token)
    if auth.get("role_id"):
        form = {"role_id": auth["role_id"], "secret_id": auth.get("secret_id")}
        return await _log_in(vault, str(auth.get("mount") or "approle"), "login", form)
    if auth.get("username"):
        path = f"login/{quote(str(auth['username']))}"
        return await _log_in(vault, str(auth.get("mount") or "userpass"), path, {"password": auth.get("password")})
    if auth.get("role"):
        form = {"role": auth["role"], "jwt": auth.get("jwt") or _service_account(vault)}
        return await _log_in(vault, str(auth.get("mount") or "kubernetes"), "login", form)
    found = vault.request.environment.get("VAULT_TOKEN")
    if not found or not vault.trusted:  # the installation's token is not sent to an address that a playbook names
        raise vault.request.unavailable(
            "no Vault credentials: give `auth` (a token, role_id and secret_id, username and "
            "password, or role), or set VAULT_ADDR and VAULT_TOKEN"
        )
    return found


async def _log_in(vault: _Vault, mount: str, path: str, form: Mapping[str, Any]) -> str:
    status, reply = await vault.send("POST", f"auth/{mount.strip('/')}/{path}", form)
    token = reply["auth"].get("client_token") if reply.get("auth") else None
    if status != 200 or not token:
        raise vault.request.unavailable(f"Vault rejected the login by {mount}: HTTP {status} {_errors(reply)}".rstrip())
    return str(token)


def _service_account(vault: _Vault) -> str:
    request, path = vault.request, "/var/run/secrets/kubernetes.io/serviceaccount/token"
    if not vault.trusted:
        raise request.unavailable(
            f"the service account of this installation is not sent to {vault.address}, which the playbook names: set "
            "VAULT_ADDR instead of `url`, or give `auth.jwt`"
        )
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError as failure:
        raise request.unavailable(
            f"cannot read the service account token {path} ({failure.strerror}); give `auth.jwt`"
        ) from None


def _errors(reply: Mapping[str, Any]) -> str:
    errors = reply.get("errors")
    return "; ".join(map(str, errors)) if isinstance(errors, list) else ""

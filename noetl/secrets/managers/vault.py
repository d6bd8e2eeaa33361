"""HashiCorp Vault (and what speaks its API): KV version 2 and 1, several ways to sign in.

`secret: mount/path#field`; the mount is `secret` when there is no slash. Signing in: a token, an AppRole,
a user and password, or a Kubernetes service account.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from noetl.secrets.source import SecretRequest, ask, one_or_all


async def read(asked: SecretRequest, secret: str, version: str | None) -> Any:
    """The secret's fields, or its only one."""
    auth = await asked.mapping("auth")
    written = asked.fields.get("url") or asked.fields.get("address") or auth.get("url") or auth.get("address")
    address = str(written or asked.environment.get("VAULT_ADDR") or "").rstrip("/")
    if not address:
        raise asked.missing("it does not say where Vault is: give `url`, or set VAULT_ADDR", "schema")
    headers = {"Accept": "application/json"}
    namespace = asked.fields.get("namespace") or auth.get("namespace") or asked.environment.get("VAULT_NAMESPACE")
    if namespace:
        headers["X-Vault-Namespace"] = str(namespace)
    vault = _Vault(asked, address, headers, trusted=not written)
    headers["X-Vault-Token"] = await _token(vault, auth)
    mount, rest = _place(secret, asked.fields.get("mount"))
    query = f"?version={quote(version)}" if version else ""
    status, said = await vault.ask("GET", f"{mount}/data/{quote(rest)}{query}")
    found = said.get("data") if isinstance(said, Mapping) else None
    if status == 200 and isinstance(found, Mapping) and isinstance(found.get("data"), Mapping):
        return one_or_all(found["data"])
    if status in (404, 405) and not version:
        status, older = await vault.ask("GET", f"{mount}/{quote(rest)}")
        found = older.get("data") if isinstance(older, Mapping) else None
        if status == 200 and isinstance(found, Mapping):
            return one_or_all(found)
    if status in (200, 404):  # 200 without data: the version was deleted
        raise asked.missing(f'Vault has no secret "{mount}/{rest}"' + (f" version {version}" if version else ""))
    raise asked.missing(f'Vault refused the secret "{mount}/{rest}": HTTP {status} {_errors(said)}'.rstrip())


class _Vault(NamedTuple):
    """Where it is and what every request carries."""

    asked: SecretRequest
    address: str
    headers: dict[str, str]
    trusted: bool

    async def ask(self, method: str, path: str, form: Mapping[str, Any] | None = None) -> tuple[int, Any]:
        body = None if form is None else msgspec.json.encode(form)
        url = f"{self.address}/v1/{path}"
        return await ask(self.asked, method, url, self.headers, body=body, who="Vault", trusted=self.trusted)


def _place(secret: str, mount: Any) -> tuple[str, str]:
    """The mount and the path below it."""
    path = secret.strip("/")
    if mount:
        return str(mount).strip("/"), path
    if "/" not in path:
        return "secret", path
    first, _, rest = path.partition("/")
    return first, rest.removeprefix("data/")


async def _token(vault: _Vault, auth: Mapping[str, Any]) -> str:
    """A token: given, or by signing in."""
    token = auth.get("token") or auth.get("value")
    if token:
        return str(token)
    if auth.get("role_id"):
        form = {"role_id": auth["role_id"], "secret_id": auth.get("secret_id")}
        return await _sign_in(vault, str(auth.get("mount") or "approle"), "login", form)
    if auth.get("username"):
        way = f"login/{quote(str(auth['username']))}"
        return await _sign_in(vault, str(auth.get("mount") or "userpass"), way, {"password": auth.get("password")})
    if auth.get("role"):
        form = {"role": auth["role"], "jwt": auth.get("jwt") or _service_account(vault.asked)}
        return await _sign_in(vault, str(auth.get("mount") or "kubernetes"), "login", form)
    found = vault.asked.environment.get("VAULT_TOKEN")
    if not found or not vault.trusted:  # our own token is not for an address that a playbook names
        raise vault.asked.missing(
            "it does not say how to sign in to Vault: give `auth` (a token, role_id and secret_id, username and "
            "password, or role), or set VAULT_ADDR and VAULT_TOKEN"
        )
    return found


async def _sign_in(vault: _Vault, mount: str, way: str, form: Mapping[str, Any]) -> str:
    status, said = await vault.ask("POST", f"auth/{mount.strip('/')}/{way}", form)
    token = said["auth"].get("client_token") if isinstance(said, Mapping) and said.get("auth") else None
    if status != 200 or not token:
        raise vault.asked.missing(f"Vault did not let us in by {mount}: HTTP {status} {_errors(said)}".rstrip())
    return str(token)


def _service_account(asked: SecretRequest) -> str:
    path = "/var/run/secrets/kubernetes.io/serviceaccount/token"
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError as failure:
        raise asked.missing(f"there is no service account here ({path}: {failure.strerror}); give `auth.jwt`") from None


def _errors(said: Any) -> str:
    errors = said.get("errors") if isinstance(said, Mapping) else None
    return "; ".join(map(str, errors)) if isinstance(errors, list) else ""

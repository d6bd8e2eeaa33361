"""The address and the token of the server that the settings name."""

from __future__ import annotations

from urllib.parse import urlsplit


def server_settings(url: str | None, token: str | None) -> tuple[str, str | None]:
    """The address and the token, from the settings where they are not given."""
    from noetl.server.http.access import admin_token
    from noetl.settings import load

    settings = load().settings
    url = url or settings.server_url or f"http://127.0.0.1:{settings.server_port}{settings.server_prefix}"
    token = token or settings.token
    if token is None:
        # The admin token of this machine is sent to this machine only.
        hosts = {urlsplit(each.strip()).hostname for each in url.split(",")}
        if hosts <= {"127.0.0.1", "::1", "localhost", settings.server_host}:
            token = admin_token(settings.home)
    return url, token

"""A real SMTP server on this machine, for tests of mail."""

from __future__ import annotations

import gc
import ssl
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword

from devcluster.servers import free_port


class Inbox:
    """Keeps what it receives; `refuse` has replies to recipients, `fail` replies to the next messages."""

    def __init__(self) -> None:
        self.messages: list[EmailMessage] = []
        self.recipients: list[list[str]] = []
        self.refuse: dict[str, str] = {}
        self.fail: list[str] = []
        self.encrypted: list[bool] = []
        self.port = 0

    async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:
        """Accept or refuse a recipient."""
        if address in self.refuse:
            return self.refuse[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        """Keep a message."""
        if self.fail:
            return self.fail.pop(0)
        self.encrypted.append(session.ssl is not None or server.transport.get_extra_info("sslcontext") is not None)
        self.recipients.append(envelope.rcpt_tos)
        self.messages.append(message_from_bytes(envelope.content, policy=policy.default))  # type: ignore[arg-type]
        return "250 kept"

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a credential for this server."""
        return {"host": "127.0.0.1", "port": self.port, "from": "noetl@example.com", "tls": "none"}


@contextmanager
def smtp_server(
    *, certificate: Path | None = None, implicit: bool = False, password: tuple[str, str] | None = None
) -> Iterator[Inbox]:
    """An SMTP server: plain, with STARTTLS (`certificate`), or with TLS from the start (`implicit`)."""
    inbox = Inbox()
    options: dict[str, Any] = {}
    if certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
        options |= {"ssl_context": context} if implicit else {"tls_context": context, "require_starttls": True}
    if password is not None:
        options |= {
            "auth_required": True,
            "auth_require_tls": certificate is not None and not implicit,
            "authenticator": lambda server, session, envelope, mechanism, data: AuthResult(
                success=isinstance(data, LoginPassword) and (data.login.decode(), data.password.decode()) == password,
                handled=False,
            ),
        }
    inbox.port = free_port()
    controller = Controller(inbox, hostname="127.0.0.1", port=inbox.port, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the server advises against passwords without TLS
        controller.start()
        try:
            yield inbox
        finally:
            controller.stop()
            warnings.simplefilter("ignore", ResourceWarning)  # a failed handshake leaves a transport of the server open
            gc.collect()


def make_certificate(folder: Path) -> Path:
    """A self-signed certificate for 127.0.0.1, with its key, in one file."""
    key, cert = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)],
        check=True, capture_output=True,
    )  # fmt: skip
    both = folder / "both.pem"
    both.write_text(key.read_text() + cert.read_text())
    return both

"""Mail over SMTP: one message, TLS and authentication from a credential's fields, and errors by kind.

Fields: `host`, `port`, `username`, `password`, `from`, and `tls`:

    tls        from the first byte (default for port 465)
    starttls   by STARTTLS, required (default for port 587, and whenever there is a password)
    none       without encryption; with a password only when it is set explicitly (default for other ports)

The address is resolved here and checked by the network policy, and the connection is made to the checked address.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP as SMTP_POLICY
from email.utils import formatdate, getaddresses
from typing import Any

from msgspec import Struct, field

from noetl.core.model.outcome import ErrorInfo, error_info
from noetl.errors import NoetlError

PREFIXES = ("smtp_", "mail_")
TLS_MODES = ("tls", "starttls", "none")
SECONDS = 30.0
_PORTS = {"tls": 465, "starttls": 587, "none": 25}


class Attachment(Struct, frozen=True):
    """A file of a message."""

    name: str
    content: bytes
    content_type: str = "application/octet-stream"


class Mail(Struct, frozen=True):
    """A message; addresses are `name@host` or `Name <name@host>`."""

    to: Sequence[str]
    subject: str
    text: str = ""
    html: str | None = None
    sender: str = ""
    cc: Sequence[str] = ()
    bcc: Sequence[str] = ()
    reply_to: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    attachments: Sequence[Attachment] = ()
    id: str | None = None  # Message-ID without brackets; the same for a repeated attempt


class Sent(Struct, frozen=True):
    """What the server said."""

    message_id: str
    accepted: list[str]
    refused: dict[str, str]  # recipient -> reason
    response: str


class MailFailure(NoetlError):
    """A message that was not sent: an error kind and a message."""

    def __init__(self, kind: str, message: str, *, retryable: bool | None = None) -> None:
        super().__init__(message)
        self.info: ErrorInfo = error_info(kind, message, retryable=retryable)


async def send(
    mail: Mail,
    fields: Mapping[str, Any],
    *,
    allows: Callable[[str], bool] | None = None,
    timeout: float | None = None,
) -> Sent:
    """Send a message; MailFailure when no recipient was accepted."""
    from aiosmtplib import SMTP, SMTPException

    host, port, mode = _server(fields)
    message, recipients = compose(mail, str(fields.get("from") or fields.get("sender") or ""))
    user, password = fields.get("username") or fields.get("user"), fields.get("password")
    context = ssl.create_default_context()
    if str(fields.get("verify", "true")).lower() == "false":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(timeout or SECONDS):
            sock = await _connected(host, port, allows)
            client = SMTP(
                hostname=host,
                username=user,
                password=password,
                use_tls=mode == "tls",
                start_tls=mode == "starttls",
                tls_context=context if mode != "none" else None,
                timeout=timeout or SECONDS,
                sock=sock,
            )
            try:
                async with client:
                    refused, response = await client.send_message(message, recipients=recipients)
            finally:
                client.close()  # also after a failure to connect
                await asyncio.sleep(0)  # the transport is closed in the next iteration of the loop
    except TimeoutError:
        raise MailFailure("timeout", f"the mail server {host}:{port} did not respond in time") from None
    except (SMTPException, OSError, ValueError) as problem:
        raise _failure(problem, f"{host}:{port}") from None
    reasons = {each: f"{reply.code} {reply.message}" for each, reply in refused.items()}
    accepted = [each for each in recipients if each not in reasons]
    return Sent(str(message["Message-ID"]), accepted, reasons, response)


def compose(mail: Mail, default_sender: str = "") -> tuple[EmailMessage, list[str]]:
    """The message and its recipients; MailFailure when an address is not valid."""
    message = EmailMessage(policy=SMTP_POLICY)
    sender = mail.sender or default_sender
    if not sender:
        raise MailFailure("schema", "the message has no sender: give `from`, or the field `from` of the credential")
    message["From"] = _addresses([sender], "from")
    message["To"] = to = _addresses(mail.to, "to")
    cc, bcc = _addresses(mail.cc, "cc"), _addresses(mail.bcc, "bcc")
    if cc:
        message["Cc"] = cc
    if mail.reply_to:
        message["Reply-To"] = _addresses([mail.reply_to], "reply_to")
    message["Subject"] = " ".join(mail.subject.split())
    message["Date"] = formatdate(localtime=False)
    domain = message["From"].addresses[0].domain or "localhost"
    message["Message-ID"] = f"<{mail.id}@{domain}>" if mail.id else _message_id(domain)
    for name, value in mail.headers.items():
        if name.lower() in ("from", "to", "cc", "bcc", "subject", "date", "message-id"):
            raise MailFailure("schema", f"the header {name} has a parameter of its own")
        message[name] = " ".join(str(value).split())
    message.set_content(mail.text)
    if mail.html is not None:
        message.add_alternative(mail.html, subtype="html")
    for each in mail.attachments:
        kind, _, subtype = each.content_type.partition(";")[0].strip().partition("/")
        message.add_attachment(each.content, kind or "application", subtype or "octet-stream", filename=each.name)
    recipients = list(dict.fromkeys(each.addr_spec for each in (*to, *cc, *bcc)))
    if not recipients:
        raise MailFailure("schema", "the message has no recipient")
    return message, recipients


def _message_id(domain: str) -> str:
    from email.utils import make_msgid

    return make_msgid(domain=domain)


def _addresses(given: Sequence[str], what: str) -> list[Address]:
    found = []
    for text in given:
        if any(each in text for each in "\r\n"):
            raise MailFailure("schema", f"{what}: an address has one line")
        for name, address in getaddresses([text]):
            user, at, domain = address.rpartition("@")
            try:
                if not at or not user or not domain or " " in address:
                    raise ValueError(address)
                found.append(Address(display_name=name, username=user, domain=domain))
            except (ValueError, IndexError):
                raise MailFailure("schema", f"{what}: {text!r} is not a mail address") from None
    return found


def _server(fields: Mapping[str, Any]) -> tuple[str, int, str]:
    host = str(fields.get("host") or fields.get("hostname") or fields.get("server") or "")
    if not host:
        raise MailFailure("auth", "no mail server: the credential needs the field `host`")
    try:
        port = int(fields.get("port") or 0)
    except (TypeError, ValueError):
        raise MailFailure("auth", f"port {fields.get('port')!r} of the mail server is not a number") from None
    mode = str(fields.get("tls") or "").lower()
    if not mode:
        mode = "tls" if port == 465 else "starttls" if port in (0, 587) or fields.get("password") else "none"
    if mode not in TLS_MODES:
        raise MailFailure("auth", f"tls is one of {', '.join(TLS_MODES)}, not {mode!r}")
    return host, port or _PORTS[mode], mode


async def _connected(host: str, port: int, allows: Callable[[str], bool] | None) -> socket.socket:
    """A socket that is connected to an allowed address of the host."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    problem: OSError = ConnectionRefusedError(errno.ECONNREFUSED, "no address")
    for family, kind, protocol, _, place in found:
        if allows is not None and not allows(str(place[0])):
            problem = PermissionError(
                f"the network policy of this installation does not allow the address {place[0]}; "
                "the setting NOETL_PRIVATE_NETWORKS allows private networks"
            )
            continue
        sock = socket.socket(family, kind, protocol)
        sock.setblocking(False)
        try:
            await loop.sock_connect(sock, place)
            return sock
        except OSError as failure:
            sock.close()
            problem = failure
        except BaseException:
            sock.close()
            raise
    raise problem


def _failure(problem: Exception, server: str) -> MailFailure:
    """The failure of an exception of the client: 4xx replies may succeed later, 5xx do not."""
    import aiosmtplib as smtp

    text = f"the mail server {server}: {problem}"
    if isinstance(problem, smtp.SMTPAuthenticationError):
        return MailFailure("auth", f"{text} (username and password of the credential)")
    if isinstance(problem, smtp.SMTPRecipientsRefused):
        codes = [each.code for each in problem.recipients]
        reasons = "; ".join(f"{each.recipient}: {each.code} {each.message}" for each in problem.recipients)
        later = any(400 <= code < 500 for code in codes)
        return MailFailure("server_error" if later else "client_error", f"{server} accepts no recipient: {reasons}")
    if isinstance(problem, smtp.SMTPResponseException):
        return MailFailure("server_error" if problem.code < 500 else "client_error", text)
    if isinstance(problem, smtp.SMTPTimeoutError):
        return MailFailure("timeout", text)
    if isinstance(problem, smtp.SMTPNotSupported):
        return MailFailure("client_error", f"{text} (field `tls` of the credential)")
    if isinstance(problem, ssl.SSLError):
        return MailFailure("connection", f"{text}: TLS failed", retryable=False)
    if isinstance(problem, PermissionError):
        return MailFailure("connection", f"{text}", retryable=False)
    return MailFailure("connection", text)

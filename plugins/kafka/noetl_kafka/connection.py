"""Settings of librdkafka from a credential; errors as error kinds; decoding of messages."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from math import inf
from typing import Any

import msgspec
from confluent_kafka import KafkaError, KafkaException

from noetl.tool import BadAuth, ErrorInfo, Host, Timeout, auth_fields, error_info, flag, jsonable, tls_context

PREFIXES = ("kafka_",)
_SERVERS = ("servers", "bootstrap_servers", "brokers", "dsn", "host")
CONNECT_SECONDS = 20.0
log = logging.getLogger("noetl.kafka")
# Settings that would make the client read files or run programs of the worker, connect to other servers than those of
# `auth`, or call functions.
FORBIDDEN = re.compile(
    r"plugin\..*|test\..*|ssl\.(engine|provider).*|.*\.(location|paths?|files?|cmd|keytab)|bootstrap\.servers|metadata\.broker\.list"
    r"|logger|opaque|.*_cb"
)


class ClientLog:
    """Receives the lines of a client of librdkafka, one for each attempt to connect; keeps the last one as a reason."""

    last = ""

    def log(self, level: int, text: str, *values: Any) -> None:
        """A line of the client."""
        line = text % values
        self.last = line.rpartition("]: ")[2] or line
        log.debug("%s", line)


class Unreachable(Exception):
    """The cluster does not answer; the message has the reason."""


def check_cluster(client: Any, options: Mapping[str, Any], topic: str, timeout: Timeout) -> Any:
    """Wait for the cluster's metadata of a topic; Unreachable with the reason that the client has logged."""
    wait = min(timeout.connect or CONNECT_SECONDS, 0.8 * (timeout.total or inf))
    try:
        return client.list_topics(topic, timeout=wait)
    except KafkaException as failure:
        if failure.args[0].code() not in (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN):
            raise
        client.poll(0.1)  # delivers the lines
        reason = options["logger"].last or failure.args[0].str()
        servers = options["bootstrap.servers"]
        raise Unreachable(f"no broker of {servers} answers after {wait:g} s: {reason}") from failure


async def settings(auth: Any, host: Host, config: Any = None) -> dict[str, Any]:
    """The settings of a client.

    librdkafka connects to all brokers that a cluster advertises, and they cannot be checked: under a network policy
    only a cluster that an administrator has chosen may name them."""
    fields = await auth_fields(auth, host, prefixes=PREFIXES)
    servers = next((fields[name] for name in _SERVERS if fields.get(name)), None)
    if servers and hasattr(host, "address_check") and host.address_check(servers) is not None:
        raise BadAuth(
            "the network policy of this installation cannot check the brokers that a Kafka cluster advertises, so the "
            "cluster of a playbook must be that of a stored credential: `noetl credential set NAME --type kafka "
            """--data '{"servers": "host:port"}'`, and `auth: NAME`"""
        )
    return client_settings(fields, config)


def client_settings(fields: Mapping[str, Any], config: Any = None) -> dict[str, Any]:
    """The settings of a client from the fields of a credential."""
    servers = next((fields[name] for name in _SERVERS if fields.get(name)), None)
    if isinstance(servers, list | tuple):
        servers = ",".join(map(str, servers))
    if servers and servers == fields.get("host"):
        servers = f"{servers}:{fields.get('port') or 9092}"
    if not servers:
        raise BadAuth("the credential of a Kafka cluster requires `servers` (host:port, ...)")
    found: dict[str, Any] = {
        "bootstrap.servers": str(servers).removeprefix("kafka://").rstrip("/"),
        "logger": ClientLog(),
    }
    tls, user = tls_context(fields) is not None, fields.get("user") or fields.get("username")
    if user:
        found["security.protocol"] = "SASL_SSL" if tls else "SASL_PLAINTEXT"
        found["sasl.mechanism"] = str(fields.get("mechanism") or "PLAIN")
        found["sasl.username"], found["sasl.password"] = str(user), str(fields.get("password") or "")
    elif tls:
        found["security.protocol"] = "SSL"
    if tls and not flag(fields, "verify", True):
        found["enable.ssl.certificate.verification"] = False
    if fields.get("ca"):
        found["ssl.ca.pem" if "BEGIN" in str(fields["ca"]) else "ssl.ca.location"] = str(fields["ca"])
    if fields.get("certificate") and fields.get("private_key"):
        found["ssl.certificate.pem"], found["ssl.key.pem"] = str(fields["certificate"]), str(fields["private_key"])
    for name, value in (config or {}).items():
        if FORBIDDEN.fullmatch(str(name)):
            raise BadAuth(f"config: {name} cannot be set")
        found[str(name)] = value
    return found


_KINDS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "auth",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "auth",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "auth",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "auth",
    KafkaError.SASL_AUTHENTICATION_FAILED: "auth",
    KafkaError._AUTHENTICATION: "auth",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "not_found",
    KafkaError._UNKNOWN_TOPIC: "not_found",
    KafkaError._UNKNOWN_PARTITION: "not_found",
    KafkaError.MSG_SIZE_TOO_LARGE: "client_error",
    KafkaError._INVALID_ARG: "schema",
    KafkaError.OFFSET_OUT_OF_RANGE: "client_error",
    KafkaError._AUTO_OFFSET_RESET: "client_error",
    KafkaError._TIMED_OUT: "timeout",
    KafkaError._MSG_TIMED_OUT: "timeout",
    KafkaError._TIMED_OUT_QUEUE: "timeout",
    KafkaError.REQUEST_TIMED_OUT: "timeout",
    KafkaError._ALL_BROKERS_DOWN: "connection",
    KafkaError._TRANSPORT: "connection",
    KafkaError._RESOLVE: "connection",
}


def explain(failure: Exception) -> ErrorInfo | None:
    """The error for an exception of the driver; None for other exceptions."""
    if isinstance(failure, Unreachable):
        refused = any(word in str(failure).lower() for word in ("authentication", "sasl"))
        hint = "; check `tls`, `ca` and `verify` of the credential" if "ssl" in str(failure).lower() else ""
        return error_info("auth" if refused else "connection", f"kafka: {failure}{hint}")
    if isinstance(failure, KafkaException) and failure.args and isinstance(failure.args[0], KafkaError):
        problem = failure.args[0]
        return error_info(_KINDS.get(problem.code(), "server_error"), f"kafka: {problem.str()}")
    return None


def encoded(value: Any) -> bytes | None:
    """A key or value as bytes: text as it is, anything else as JSON."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str).encode()


def decoded(data: bytes | None, format: str) -> Any:
    """Bytes of a key or value; what is no UTF-8 is base64."""
    if data is None:
        return None
    if format == "json":
        try:
            return msgspec.json.decode(data)
        except ValueError:
            return decoded(data, "text")
    try:
        return data.decode() if format == "text" else jsonable(data)
    except UnicodeDecodeError:
        return jsonable(data)


def message_row(message: Any, format: str) -> dict[str, Any]:
    """A message as data."""
    kind, moment = message.timestamp()
    return {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": moment if kind else None,
        "key": decoded(message.key(), "text" if format == "json" else format),
        "value": decoded(message.value(), format),
        "headers": {name: decoded(value, "text") for name, value in message.headers() or ()},
    }

"""Failures of an engine or a cluster, as error kinds."""

from __future__ import annotations

# Parts of the messages of podman, docker, registries and Kubernetes, in lower case.
_KINDS = (
    ("shell", ("permission denied: unknown", "oci permission denied", "exec format error")),  # of the program
    ("auth", ("unauthorized", "authentication required", "access to the resource is denied", "denied: ", "forbidden")),
    ("not_found", ("manifest unknown", "no such image", "image not known", "not found", "short-name",
                   "does not resolve to an image", "errimageneverpull", "no such container",
                   "no such object", "no container with name",
                   "could not find the file", "no such file or directory", "invalidimagename",
                   "pull access denied")),
    ("limit", ("no space left", "memory limit", "exceeded quota")),
    ("connection", ("cannot connect", "connection refused", "unable to connect", "dial tcp", "i/o timeout",
                    "no route to host", "is the docker daemon running", "temporary failure", "tls handshake",
                    "connection reset", "errimagepull", "imagepullbackoff")),
)  # fmt: skip


class EngineFailed(Exception):
    """The engine could not do what was asked."""

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind or kind_of(message)


def kind_of(message: str) -> str:
    """The error kind of an engine's message."""
    text = message.lower()
    return next((kind for kind, parts in _KINDS if any(part in text for part in parts)), "server_error")

"""Certificates for servers of tests, made with the program openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple


class Certificates(NamedTuple):
    """The files of an authority's certificate, and of a server's certificate and key."""

    ca: Path
    certificate: Path
    key: Path


def create(folder: Path, names: str = "IP:127.0.0.1") -> Certificates:
    """A new authority, and a certificate of it for a server with these names."""
    made = Certificates(folder / "ca.pem", folder / "server.pem", folder / "server.key")
    new = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    authority = ["-subj", "/CN=authority", "-keyout", str(folder / "ca.key"), "-out", str(made.ca)]
    server = [
        "-subj", "/CN=server", "-keyout", str(made.key), "-out", str(made.certificate), "-CA", str(made.ca), "-CAkey",
        str(folder / "ca.key"), "-addext", f"subjectAltName={names}", "-addext", "basicConstraints=CA:FALSE",
    ]  # fmt: skip
    for arguments in (authority, server):
        subprocess.run([*new, *arguments], check=True, capture_output=True, timeout=60)
    return made

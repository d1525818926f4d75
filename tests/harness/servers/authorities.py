"""Certificate authorities as clusters have them that were made years ago: without extensions that RFC 5280 asks for."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

_CONFIG = """
[req]
distinguished_name = name
prompt = no
x509_extensions = authority
[name]
CN = kubernetes
[authority]
basicConstraints = CA:TRUE
subjectKeyIdentifier = none
authorityKeyIdentifier = none
[server]
subjectAltName = IP:127.0.0.1, DNS:localhost
subjectKeyIdentifier = none
authorityKeyIdentifier = none
"""
"""No keyUsage, basicConstraints not critical, no key identifiers: Go takes it, OpenSSL's strict checks do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OldAuthority:
    """An authority, and the certificate of 127.0.0.1 and localhost that it signed."""

    authority: Path
    certificate: Path
    key: Path

    def server_side(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certificate, self.key)
        return context


def old_authority(folder: Path) -> OldAuthority:
    """Make both in the folder, with openssl."""
    if (openssl := shutil.which("openssl")) is None:
        raise FileNotFoundError("no openssl on the PATH to make certificates with")
    (folder / "openssl.cnf").write_text(_CONFIG)

    def run(command: str) -> None:
        subprocess.run([openssl, *command.split()], cwd=folder, check=True, capture_output=True, timeout=60)

    run("req -x509 -newkey rsa:2048 -nodes -days 2 -config openssl.cnf -keyout ca.key -out ca.pem")
    run("req -new -newkey rsa:2048 -nodes -config openssl.cnf -subj /CN=server -keyout key.pem -out server.csr")
    run(
        "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2"
        " -extfile openssl.cnf -extensions server -out cert.pem"
    )
    return OldAuthority(authority=folder / "ca.pem", certificate=folder / "cert.pem", key=folder / "key.pem")

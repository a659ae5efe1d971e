"""Self-signed certificates for tests of TLS, made with the command openssl."""

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest


class Certificate(NamedTuple):
    """PEM files of a certificate and its key."""

    cert: Path
    key: Path


def make_certificate(folder: Path, name: str = "server") -> Certificate:
    """Make a certificate for this machine; skip the test without openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl: apt-get install openssl")
    made = Certificate(folder / f"{name}.pem", folder / f"{name}.key")
    names = "subjectAltName=IP:127.0.0.1,DNS:localhost"
    options = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    run_openssl(*options.split(), "-addext", names, "-out", str(made.cert), "-keyout", str(made.key))
    return made


def run_openssl(*args: str) -> None:
    subprocess.run(["openssl", *args], check=True, capture_output=True)

"""Tests of TLS for `serve`, `play` and their clients, with self-signed certificates."""

import json
import socket
import ssl
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from nsde_policy.assets import SHIPPED_POLICY
from nsde_policy.cli.main import main
from nsde_policy.deploy.client import RemotePolicy
from nsde_policy.errors import ConfigError, RemoteError
from nsde_policy.viewer.http import ViewerSettings
from nsde_policy.viewer.play_app import PlayApp
from nsde_policy.viewer.policy_runner import load_runners
from tests.helpers.certificates import Certificate, make_certificate, run_openssl
from tests.helpers.policy_servers import (
    STATES,
    LinearPlanner,
    RunningServer,
    assert_server_works,
    serve_in_thread,
)
from tests.helpers.viewer_servers import run_viewer


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls"))


class SecureServer(RunningServer):
    """A running server with TLS."""

    @property
    def url(self) -> str:
        return f"wss://127.0.0.1:{self.port}"


def serve_with_tls(certificate: Certificate, **options: Any) -> Any:
    return serve_in_thread(
        LinearPlanner(), tls_cert=certificate.cert, tls_key=certificate.key, kind=SecureServer, **options
    )


def test_plans_over_tls_are_bit_identical_also_after_a_lost_connection(certificate: Certificate):
    with serve_with_tls(certificate) as running:
        assert_server_works(running, ca_file=certificate.cert)
        options = {"ca_file": certificate.cert, "deadline_s": 5, "timeout_s": 10}
        with RemotePolicy.connect(running.url, **options) as policy:
            assert policy._connection is not None
            policy._connection.socket.shutdown(socket.SHUT_RDWR)
            assert policy.plan_from(STATES, steps=4, seed=1).actions.shape == (4, 2)
        context = ssl.create_default_context(cafile=certificate.cert)
        url = f"https://localhost:{running.port}/healthz"
        with urllib.request.urlopen(url, timeout=10, context=context) as response:
            assert json.load(response)["planned"] == 2


def test_certificate_that_is_not_trusted_is_a_typed_error(certificate: Certificate, tmp_path: Path):
    other = make_certificate(tmp_path)
    with serve_with_tls(certificate) as running:
        for options in ({}, {"ca_file": other.cert}):
            with pytest.raises(RemoteError, match=r"not trusted: self.signed certificate.*ca_file"):
                RemotePolicy.connect(running.url, timeout_s=10, **options)
        assert_server_works(running, ca_file=certificate.cert)
    with serve_with_tls(certificate, host="127.0.0.2") as running:
        url = running.url.replace("127.0.0.1", "127.0.0.2")
        with pytest.raises(RemoteError, match="not trusted: IP address mismatch"):
            RemotePolicy.connect(url, ca_file=certificate.cert, timeout_s=10)


def test_client_and_server_of_which_one_has_no_tls_fail_with_a_typed_error(certificate: Certificate):
    with serve_with_tls(certificate) as running:
        with pytest.raises(RemoteError, match="cannot connect"):
            RemotePolicy.connect(running.url.replace("wss", "ws"), timeout_s=10)
        assert_server_works(running, ca_file=certificate.cert)
    with (
        serve_in_thread(LinearPlanner()) as plain,
        pytest.raises(RemoteError, match="cannot connect"),
    ):
        RemotePolicy.connect(plain.url.replace("ws", "wss"), ca_file=certificate.cert, timeout_s=10)


def test_viewer_over_https(certificate: Certificate):
    tls = {"tls_cert": certificate.cert, "tls_key": certificate.key}
    context = ssl.create_default_context(cafile=certificate.cert)
    with run_viewer(PlayApp(load_runners([SHIPPED_POLICY]), seed=3), **tls) as viewer:
        host = f"127.0.0.1:{viewer.port}"
        (url,) = ViewerSettings(**tls).urls(viewer.port)
        assert url == f"https://{host}/"
        with urllib.request.urlopen(url, timeout=10, context=context) as response:
            assert f" wss://{host};" in response.headers["Content-Security-Policy"]
        live = {"proxy": None, "ssl": context, "open_timeout": 10}
        with connect(f"wss://{host}/live", origin=f"https://{host}", **live) as page:
            assert json.loads(page.recv(timeout=10))["type"] == "hello"
        for origin in (f"http://{host}", "https://evil.example"):
            with pytest.raises(InvalidStatus), connect(f"wss://{host}/live", origin=origin, **live):
                pass


@pytest.fixture(scope="module")
def bad_files(tmp_path_factory: pytest.TempPathFactory, certificate: Certificate) -> dict[str, str]:
    """Files that are not usable, by name."""
    folder = tmp_path_factory.mktemp("bad")
    other = make_certificate(folder, "other")
    encrypted, text = folder / "encrypted.key", folder / "text.pem"
    run_openssl("pkey", "-in", str(other.key), "-aes128", "-passout", "pass:1234", "-out", str(encrypted))
    text.write_text("not a certificate\n")
    paths = {"cert": certificate.cert, "key": certificate.key, "other.key": other.key}
    paths |= {"encrypted": encrypted, "text": text, "none": folder / "none", "folder": folder}
    return {name: str(path) for name, path in paths.items()}


@pytest.mark.parametrize(
    ("cert", "key", "message"),
    [
        ("cert", None, "give both --tls-cert and --tls-key"),
        (None, "key", "give both --tls-cert and --tls-key"),
        ("none", "key", "No such file or directory"),
        ("cert", "other.key", "KEY_VALUES_MISMATCH"),
        ("cert", "encrypted", "the key is encrypted"),
        ("text", "key", "as --tls-cert"),
        ("folder", "key", "as --tls-cert"),
    ],
)
@pytest.mark.parametrize("command", ["serve", "play"])
def test_unusable_certificate_or_key_prints_one_line_and_exits_2(
    command: str, cert: str | None, key: str | None, message: str, bad_files: dict[str, str], capsys: Any
):
    given = [("--tls-cert", cert), ("--tls-key", key)]
    args = [text for flag, name in given if name is not None for text in (flag, bad_files[name])]
    assert main([command, "--port", "0", *args]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("url", "name", "message"),
    [
        ("ws://127.0.0.1:1", "cert", "ca_file is for wss://"),
        ("wss://127.0.0.1:1", "none", "No such file"),
        ("wss://127.0.0.1:1", "text", "cannot read PEM certificates"),
    ],
)
def test_unusable_ca_file_is_a_config_error(url: str, name: str, message: str, bad_files: dict[str, str]):
    with pytest.raises(ConfigError, match=message):
        RemotePolicy.connect(url, ca_file=bad_files[name])

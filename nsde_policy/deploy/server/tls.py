"""TLS contexts of servers and clients, with errors that name the flag and the file."""

import ssl
from pathlib import Path

from nsde_policy.errors import ConfigError, summarize_error
from nsde_policy.files import open_regular

MAX_PEM_BYTES = 2**20
"""Size limit of a file with certificates or a key."""


def load_server_tls(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Load a certificate chain and its private key, both PEM; return None if neither is given.

    Raises:
        ConfigError: If one of the two is missing, unreadable, encrypted, or they do not belong together.
    """
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        found, missing = ("--tls-cert", "--tls-key") if key is None else ("--tls-key", "--tls-cert")
        raise ConfigError(f"{found} needs {missing} as well: TLS takes a certificate and its private key")
    for flag, path in (("--tls-cert", cert), ("--tls-key", key)):
        _check_pem(path, flag)

    def refuse_password() -> str:
        raise ConfigError(
            f"the key in {key} is encrypted, and a server cannot ask for its password: decrypt it with "
            "openssl pkey -in KEY -out NEW, and give NEW as --tls-key"
        )

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key, refuse_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                f"the key in {key} does not belong to the certificate in {cert}; check --tls-cert, --tls-key"
            ) from None
        raise ConfigError(
            f"cannot read a PEM certificate from {cert} and its private key from {key}: "
            f"{summarize_error(error)}; check --tls-cert and --tls-key"
        ) from None
    return context


def load_client_tls(url: str, ca_file: Path | str | None) -> ssl.SSLContext | None:
    """Return the TLS context of a client, or None for a URL without TLS.

    Args:
        url: ws:// or wss:// address of the server.
        ca_file: PEM file with the certificates to trust; None for those of the system.

    Raises:
        ConfigError: If the file cannot be read, or the URL would not use it.
    """
    is_secure = url.lower().startswith("wss:")
    if ca_file is None:
        return ssl.create_default_context() if is_secure else None
    if not is_secure:
        raise ConfigError(f"ca_file is for wss:// addresses, got {url!r:.80}: use wss://, or leave it out")
    _check_pem(path := Path(ca_file), "ca_file")
    try:
        return ssl.create_default_context(cafile=path)
    except ssl.SSLError as error:
        raise ConfigError(
            f"cannot read PEM certificates from {path}: {summarize_error(error)}; check ca_file"
        ) from None


def _check_pem(path: Path, flag: str) -> None:
    """Raise `ConfigError` unless the path is a readable regular file of a plausible size."""
    try:
        open_regular(path, MAX_PEM_BYTES, error=ConfigError).close()
    except ConfigError as error:
        raise ConfigError(f"{summarize_error(error)}; check {flag}") from None

"""TLS contexts of servers and clients, with errors that name the flag and the file."""

import ssl
from pathlib import Path

from nsde_policy.errors import ConfigError, summarize_error


def load_server_tls(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Load a certificate chain and its private key, both PEM; return None if neither is given.

    Raises:
        ConfigError: If one of the two is missing, unreadable, encrypted, or they do not belong together.
    """
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise ConfigError("TLS needs a certificate and its private key: give both --tls-cert and --tls-key")

    def refuse_password() -> str:
        raise ConfigError(
            "the key is encrypted, and a server cannot ask for its password: decrypt it with "
            "openssl pkey -in KEY -out NEW, and give NEW as --tls-key"
        )

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key, refuse_password)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot use {cert} as --tls-cert and {key} as --tls-key: {summarize_error(error)}"
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
    if not url.lower().startswith("wss:"):
        if ca_file is None:
            return None
        raise ConfigError(f"ca_file is for wss:// addresses, got {url!r:.80}: use wss://, or leave it out")
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read PEM certificates from ca_file {ca_file}: {summarize_error(error)}"
        ) from None

"""Tokens that clients of a server send."""

from nsde_policy.errors import ConfigError

MIN_TOKEN_LENGTH = 16


def fits_header(token: str) -> bool:
    """Return whether a token can stand in an HTTP header: printable ASCII characters, no blanks."""
    return token.isascii() and token.isprintable() and " " not in token


def check_token(token: str) -> str:
    """Return the token, or raise `ConfigError` if it is short or cannot stand in an HTTP header."""
    if len(token) < MIN_TOKEN_LENGTH or not fits_header(token):
        raise ConfigError(
            f"a token needs at least {MIN_TOKEN_LENGTH} ASCII characters and no blanks, got {len(token)}: "
            "make one with python -c 'import secrets; print(secrets.token_urlsafe())'"
        )
    return token

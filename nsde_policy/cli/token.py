"""The token of a server: from a file or from the environment, never from the command line others can list."""

import os
from pathlib import Path

from nsde_policy.errors import ConfigError

TOKEN_VARIABLE = "NSDE_POLICY_TOKEN"


def read_token(path: Path | None) -> str | None:
    """What stands in the file, or in the variable; None where neither is there."""
    if path is None:
        return os.environ.get(TOKEN_VARIABLE)
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(f"the token cannot be read from {path}: {why}") from None

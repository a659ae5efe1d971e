"""Files of results that `--table` of a benchmark prints."""

import argparse
import json
from pathlib import Path
from typing import Any


def read_results(parser: argparse.ArgumentParser, path: Path, *fields: str, rows: str = "rows") -> Any:
    """Read the results of a benchmark; end with an error of the parser if the file holds none of its own.

    Args:
        parser: Parser of the benchmark's flags.
        path: File of `--table`: a list or dict of rows, or a dict with an entry `rows` that holds them.
        fields: Names that every row has.
        rows: Name of the entry that holds the rows.
    """
    if not path.is_file():
        parser.error(f"--table: file not found: {path}; give a file of results of this program")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        parser.error(f"--table: {path} is not valid JSON ({error}); give a file of results of this program")
    held = found.get(rows, found) if isinstance(found, dict) else found
    each = [*held.values()] if isinstance(held, dict) else held
    if not isinstance(each, list) or not all(isinstance(row, dict) and {*fields} <= {*row} for row in each):
        parser.error(
            f"--table: {path} holds other results, expected rows with {', '.join(fields)}; give a file of "
            "results of this program"
        )
    return found

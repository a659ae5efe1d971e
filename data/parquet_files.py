"""Columns of parquet files, read one row group at a time without trusting the files."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from nsde_policy.data.types import Numbers
from nsde_policy.errors import DemoError, NsdePolicyError, describe_problem, import_optional
from nsde_policy.files import MAX_UNPACKED_VARIABLE, get_max_unpacked, open_regular

Arrow = Any
"""An object of pyarrow, which has no types: a file or a column."""
EXTRA = "lerobot"
"""Extra of this package that installs pyarrow."""


@contextmanager
def open_parquet(path: Path) -> Iterator[Arrow]:
    """Open a parquet file; raise `DemoError` for whatever its reader raises."""
    parquet = import_optional("pyarrow.parquet", EXTRA)
    with open_regular(path, error=DemoError) as file:
        try:
            yield parquet.ParquetFile(file)
        except NsdePolicyError:
            raise
        except (OSError, ValueError, TypeError, NotImplementedError, MemoryError) as error:
            if re.search("magic bytes|smaller than|file size is", str(error)):
                raise DemoError(
                    f"{path} is an unfinished or truncated parquet file: its end is missing; restore it "
                    "from the original"
                ) from error
            raise DemoError(f"{path} is a damaged parquet file: {describe_problem(error)}") from error


class ColumnReader:
    """Reads columns of parquet files; the last row group stays in memory for the rows that follow."""

    def __init__(self) -> None:
        self._key: tuple[Path, str] | None = None
        self._ends: Numbers = np.zeros(0, np.int64)
        self._groups: dict[int, Arrow] = {}

    def read(self, path: Path, name: str, start: int, stop: int) -> list[Arrow]:
        """Read the rows `start` to `stop` of a column, in parts."""
        if self._key != (path, name):
            self._key, self._groups = None, {}
            with open_parquet(path) as file:
                if name not in file.schema_arrow.names:
                    found = ", ".join(file.schema_arrow.names)
                    raise DemoError(f"{path} has no column {name!r}; it has: {found:.200}")
                groups = range(file.num_row_groups)
                self._ends = np.cumsum([0, *(file.metadata.row_group(group).num_rows for group in groups)])
            self._key = path, name
        parts = []
        for group in range(len(self._ends) - 1):
            first, end = int(self._ends[group]), int(self._ends[group + 1])
            if start < end and stop > first:
                if group not in self._groups:
                    self._groups = {group: _read_group(path, name, group)}
                begin = max(start, first) - first
                parts.append(self._groups[group].slice(begin, min(stop, end) - first - begin))
        return parts


def _read_group(path: Path, name: str, group: int) -> Arrow:
    """Read a column of a row group; a name with dots is not taken apart."""
    with open_parquet(path) as file:
        chunks = file.metadata.row_group(group)
        columns = [chunks.column(i) for i in range(chunks.num_columns)]
        size = sum(
            c.total_uncompressed_size for c in columns if f"{c.path_in_schema}.".startswith(f"{name}.")
        )
        if size > get_max_unpacked():
            raise DemoError(
                f"{path}: {name} takes {size} bytes in row group {group}, the limit is {get_max_unpacked()}; "
                f"set {MAX_UNPACKED_VARIABLE} if the file is what you expect"
            )
        return file.read_row_group(group, columns=[name], use_threads=False).column(name)


def convert_column(column: Arrow, shape: Sequence[int], dtype: np.dtype[np.generic], where: str) -> Numbers:
    """Convert a column of numbers, or of lists of them, to an array (rows, *shape)."""
    pa, pc = import_optional("pyarrow", EXTRA), import_optional("pyarrow.compute", EXTRA)
    expected = f"expected {dtype} {tuple(shape)} in each row"
    values = column.combine_chunks()
    for size in shape:
        if pa.types.is_list(values.type) or pa.types.is_fixed_size_list(values.type):
            lengths = pc.list_value_length(values)
            if values.null_count or not pc.all(pc.equal(lengths, size), min_count=0).as_py():
                raise DemoError(f"{where} has missing rows or lists of other lengths, {expected}")
            values = values.flatten()
        elif size != 1:
            raise DemoError(f"{where} holds {values.type}, {expected}")
    kind = values.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise DemoError(f"{where} holds {kind}, {expected}")
    if values.null_count:
        raise DemoError(f"{where} has {values.null_count} missing values, {expected}")
    stored = values.to_numpy(zero_copy_only=False)
    numbers: Numbers = stored.astype(dtype)
    if dtype.kind in "iub" and (numbers != stored).any():
        raise DemoError(f"{where} holds {stored.dtype} that do not fit, {expected}")
    return numbers.reshape(-1, *shape)

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
EXTRA = "lerobot-data"
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
    """Reads columns of parquet files; the row groups read last stay in memory for the rows that follow."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._ends: Numbers = np.zeros(0, np.int64)
        self._key: tuple[Path, str, int, int] | None = None
        self._column: Arrow = None

    def read(self, path: Path, name: str, start: int, stop: int) -> Arrow:
        """Read the rows `start` to `stop` of a column."""
        if path != self._path:
            with open_parquet(path) as file:
                sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
            self._path, self._ends = path, np.cumsum(sizes)
        first, last = (int(np.searchsorted(self._ends, row, side="right")) for row in (start, stop - 1))
        if self._key != (path, name, first, last):
            self._column, self._key = (
                _read_groups(path, name, range(first, last + 1)),
                (path, name, first, last),
            )
        return self._column.slice(start - (int(self._ends[first - 1]) if first else 0), stop - start)


def _read_groups(path: Path, name: str, groups: range) -> Arrow:
    """Read a column of some row groups, after checking its size; dots in its name are a part of it."""
    with open_parquet(path) as file:
        if name not in file.schema_arrow.names:
            raise DemoError(
                f"{path} has no column {name!r}; it has: {', '.join(file.schema_arrow.names):.200}"
            )
        paths = [file.schema.column(leaf).path for leaf in range(len(file.schema))]
        leaves = [leaf for leaf, at in enumerate(paths) if f"{at}.".startswith(f"{name}.")]
        rows = (file.metadata.row_group(group) for group in groups)
        size = sum(row.column(leaf).total_uncompressed_size for row in rows for leaf in leaves)
        if size > get_max_unpacked():
            raise DemoError(
                f"{path}: {name} takes {size} bytes, the limit is {get_max_unpacked()}; set "
                f"{MAX_UNPACKED_VARIABLE} if the file is what you expect"
            )
        return file.read_row_groups(list(groups), columns=[name], use_threads=False).column(name)


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

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
            raise DemoError(
                f"{path} is a damaged or unfinished parquet file: {describe_problem(error)}; restore it from "
                "the original"
            ) from error


def read_column(path: Path, name: str, groups: Sequence[int]) -> Arrow:
    """Read a column of some row groups, after checking its size; dots in its name are a part of it."""
    with open_parquet(path) as file:
        if name not in file.schema_arrow.names:
            raise DemoError(
                f"{path} has no column {name!r}; it has: {', '.join(file.schema_arrow.names):.200}"
            )
        rows = [file.metadata.row_group(group) for group in groups]
        leaves = [row.column(leaf) for row in rows for leaf in range(row.num_columns)]
        found = [leaf for leaf in leaves if f"{leaf.path_in_schema}.".startswith(f"{name}.")]
        if (size := sum(leaf.total_uncompressed_size for leaf in found)) > get_max_unpacked():
            raise DemoError(
                f"{path}: {name} takes {size} bytes, the limit is {get_max_unpacked()}; set "
                f"{MAX_UNPACKED_VARIABLE} if the file is what you expect"
            )
        return file.read_row_groups(list(groups), columns=[name], use_threads=False).column(name)


def convert_column(column: Arrow, shape: Sequence[int], dtype: str, where: str) -> Numbers:
    """Convert a column of numbers, or of lists of them, to an array (rows, *shape)."""
    types = import_optional("pyarrow", EXTRA).types
    expected = f"expected {np.dtype(dtype)} {tuple(shape)} in each row"
    values = column.combine_chunks()
    for size in shape:
        is_list = types.is_list(values.type) or types.is_fixed_size_list(values.type)
        lengths = [getattr(values.type, "list_size", 1)]
        if types.is_list(values.type):
            lengths = np.unique(np.diff(values.offsets)).tolist()  # pyarrow.compute is slow to import
        if lengths not in ([size], []) or (is_list and values.null_count):
            raise DemoError(f"{where} holds {values.type} with lengths {lengths!s:.40}, {expected}")
        values = values.flatten() if is_list else values
    if values.null_count or not re.match("u?int|float|double|halffloat|bool", str(values.type)):
        raise DemoError(f"{where} holds {values.type}, {values.null_count} of them missing, {expected}")
    stored = values.to_numpy(zero_copy_only=False)
    numbers: Numbers = stored.astype(dtype)
    if numbers.dtype.kind in "iub" and (numbers != stored).any():
        raise DemoError(f"{where} holds {stored.dtype} that do not fit, {expected}")
    return numbers.reshape(-1, *shape)

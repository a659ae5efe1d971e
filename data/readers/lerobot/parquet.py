"""Columns of parquet files, read one row group at a time without trusting the files."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from nsde_policy.errors import DemoError, import_optional, wrap_read_errors
from nsde_policy.files import MAX_UNPACKED_VARIABLE, get_max_unpacked, open_regular

from ...types import Numbers

NUMBER_BYTES = 8
"""Most memory of a number; in a file, repeated numbers take almost none."""
Arrow = Any
"""An object of pyarrow, which has no types: a file or a column."""
EXTRA = "lerobot-data"
"""Extra of this package that installs pyarrow."""


@contextmanager
def open_parquet(path: Path) -> Iterator[Arrow]:
    """Open a parquet file; raise `DemoError` for whatever its reader raises."""
    parquet = import_optional("pyarrow.parquet", EXTRA)
    damaged = f"{path} is a damaged or unfinished parquet file"
    with (
        open_regular(path, error=DemoError) as file,
        wrap_read_errors(damaged, "restore it from the original"),
    ):
        yield parquet.ParquetFile(file)


def read_table(path: Path, names: Sequence[str] | None = None, groups: Sequence[int] | None = None) -> Arrow:
    """Read columns of row groups, or all, within the memory limit; dots in a name are a part of it."""
    with open_parquet(path) as file:
        columns, limit, schema = file.schema_arrow.names, get_max_unpacked(), file.schema_arrow
        names = columns if names is None else list(names)
        groups = range(file.num_row_groups) if groups is None else groups
        for name in names:
            if (count := columns.count(name)) != 1:
                raise DemoError(
                    f"{path} has {count or 'no'} column{'s' * (count > 1)} {name!r}, expected one; it has: "
                    f"{', '.join(columns):.200}"
                )
        rows = [file.metadata.row_group(group) for group in groups]
        leaves = [row.column(leaf) for row in rows for leaf in range(row.num_columns)]
        starts = tuple(f"{name}." for name in names)
        leaves = [leaf for leaf in leaves if f"{leaf.path_in_schema}.".startswith(starts)]
        size = sum(max(leaf.total_uncompressed_size, leaf.num_values * NUMBER_BYTES) for leaf in leaves)
        # A text that is repeated is stored once, so `size` does not bound texts and pictures. None of them
        # is larger than its column: rows are read in batches that fit even so, and added up.
        texts = [leaf.total_uncompressed_size for leaf in leaves if "BYTE_ARRAY" in leaf.physical_type]
        step = max(1, limit // max(texts) if any(texts) else file.metadata.num_rows)
        batches: list[Arrow] = []
        if size <= limit:
            size, options = 0, {"columns": names, "row_groups": list(groups), "use_threads": False}
            for batch in file.iter_batches(step, **options):
                batches.append(batch)
                size += batch.nbytes
                if size > limit:
                    break
        if size > limit:
            raise DemoError(
                f"{path}: {', '.join(names):.80} would take {size} bytes or more, the limit is {limit}; set "
                f"{MAX_UNPACKED_VARIABLE} if the file is what you expect"
            )
        arrow = import_optional("pyarrow", EXTRA)
        table = arrow.Table.from_batches(batches, arrow.schema([schema.field(name) for name in names]))
        if names and table.num_rows != (expected := sum(row.num_rows for row in rows)):
            raise ValueError(f"{', '.join(names):.80} has {table.num_rows} of {expected} rows")
        return table


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
    with np.errstate(invalid="ignore"):  # of NaN and infinity to integers, which is refused below
        numbers: Numbers = stored.astype(dtype)
    if numbers.dtype.kind in "iub" and (numbers != stored).any():
        raise DemoError(f"{where} holds {stored.dtype} that do not fit, {expected}")
    return numbers.reshape(-1, *shape)

"""Arrays by name as an Arrow stream and back: one record batch of one row, a column for each array.

An array is a `fixed_shape_tensor`, a number or text a plain column. `pyarrow` is optional: without it the server speaks
JSON and .npz alone.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np

HEADERS = {1: "schema", 3: "record batch"}
"""Kinds of messages in a stream that are read; dictionaries are not."""


def available() -> bool:
    return find_spec("pyarrow") is not None


def to_arrow(arrays: Mapping[str, Any]) -> bytes:
    import pyarrow as pa  # pyright: ignore[reportMissingImports]

    columns = {}
    for name, value in arrays.items():
        array = np.asarray(value)
        if array.dtype.kind in "US":
            columns[name] = pa.array([array.tolist()])
        elif array.ndim == 0:
            columns[name] = pa.array([array.item()])
        else:
            kind = pa.fixed_shape_tensor(pa.from_numpy_dtype(array.dtype), array.shape)
            columns[name] = pa.ExtensionArray.from_storage(
                kind, pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1)), array.size)
            )
    table, sink = pa.table(columns), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def from_arrow(body: bytes, most: int) -> dict[str, Any]:
    """Of at most so many columns. A ValueError says what is wrong with the bytes."""
    import pyarrow as pa  # pyright: ignore[reportMissingImports]

    try:
        for message in pa.ipc.MessageReader.open_stream(body):
            _plain(message.metadata.to_pybytes())
        with pa.ipc.open_stream(body) as reader:
            if len(reader.schema.names) > most:
                raise ValueError(f"{len(reader.schema.names)} columns are too many")
            batch = next(iter(reader), None)
        if batch is None or batch.num_rows != 1 or len(set(batch.schema.names)) < batch.num_columns:
            raise ValueError("it has not one record batch of one row and of columns with different names")
        batch.validate(full=True)
    except (pa.ArrowException, StopIteration, OSError, struct.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError(str(error)[:100]) from None
    return {name: _value(column) for name, column in zip(batch.schema.names, batch.columns, strict=True)}


def _plain(metadata: bytes) -> None:
    """A schema or a record batch that is not compressed: what a small body unpacks to has no bound.

    The fields of a flatbuffer: a table begins with the distance back to its vtable, which has an offset for each field.
    """

    def field(table: int, number: int) -> int:
        (back,) = struct.unpack_from("<i", metadata, table)
        vtable = table - back
        (size,) = struct.unpack_from("<H", metadata, vtable)
        if vtable < 0 or 4 + 2 * number >= size:
            return 0
        (offset,) = struct.unpack_from("<H", metadata, vtable + 4 + 2 * number)
        return table + offset if offset else 0

    (message,) = struct.unpack_from("<I", metadata, 0)
    kind, header = field(message, 1), field(message, 2)
    if not kind or not header or metadata[kind] not in HEADERS:
        raise ValueError(f"it has other messages than a {' and a '.join(HEADERS.values())}")
    if HEADERS[metadata[kind]] == "record batch":
        (distance,) = struct.unpack_from("<I", metadata, header)
        if field(header + distance, 3):
            raise ValueError("its record batch is compressed; send it as it is")


def _value(column: Any) -> Any:
    import pyarrow as pa  # pyright: ignore[reportMissingImports]

    kind = column.type
    if isinstance(kind, pa.FixedShapeTensorType):
        if kind.permutation is not None:
            raise ValueError("a tensor's axes are permuted; send it in the order of its shape")
        if column.null_count or column.storage.values.null_count:
            raise ValueError("a tensor has nulls")
        return column.storage.flatten().to_numpy(zero_copy_only=False).reshape(kind.shape)
    if pa.types.is_nested(kind) or pa.types.is_dictionary(kind):
        raise ValueError("a column is neither a fixed_shape_tensor nor a number nor text")
    return column[0].as_py()

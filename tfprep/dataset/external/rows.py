"""From the part file of a shard to rows of the index's columns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tfprep.dataset.external.scan import FEATURES, MISSING, LostRecord, head_bytes
from tfprep.dataset.external.schema import IndexedField
from tfprep.fields import Array
from tfprep.records.framing import HEADER_BYTES


@dataclass(frozen=True)
class RowMaker:
    """Makes rows of the columns `types` for these fields.

    Attributes:
        fields: The fields of the index.
        types: Its columns.
        raster: The feature whose height and width are the index's; None if there is none.
        key: The field that is the key; None if there is none.
    """

    fields: Sequence[IndexedField]
    types: Mapping[str, pa.DataType]
    raster: str | None
    key: str | None

    def rows(self, batch: pa.RecordBatch, shard: int) -> tuple[dict[str, pa.Array], list[LostRecord], Array]:
        """The columns of one batch of a part file, the records that miss a feature, and which rows were kept: bool [N]."""
        numbers = {name: number for number, name in enumerate(json.loads(batch.schema.metadata[FEATURES]))}
        kept, bad = self._complete(batch, numbers)
        rows = np.flatnonzero(kept)
        offset = batch.column("offset").to_numpy()[rows]
        columns: dict[str, Any] = {
            "shard": np.full(len(rows), shard, np.int32),
            "number": batch.column("number").to_numpy()[rows].astype(np.int32),
            "offset": offset,
            "size": batch.column("size").to_numpy()[rows],
            "payload_crc": batch.column("payload_crc").to_numpy()[rows],
        }
        for field in self.fields:
            columns |= self._field(field, batch, numbers.get(field.feature), rows, offset)
        if "height" in self.types:
            columns |= self._sides(batch, numbers.get(self.raster or ""), rows)
        if self.key is not None:
            columns["key"] = columns[self.key]
        arrays = {name: _cast(columns[name], dtype) for name, dtype in self.types.items()}
        return arrays, bad, kept

    def _complete(self, batch: pa.RecordBatch, numbers: Mapping[str, int]) -> tuple[Array, list[LostRecord]]:
        kept, bad = np.ones(batch.num_rows, bool), []
        for field in self.fields:
            if not field.required:
                continue
            here = np.zeros(batch.num_rows, bool)
            if (number := numbers.get(field.feature)) is not None:
                here = batch.column(f"{number}.size").to_numpy() > 0  # an empty string has a tag and a length
            for row in np.flatnonzero(kept & ~here).tolist():
                record, offset = batch.column("number")[row].as_py(), batch.column("offset")[row].as_py()
                bad.append(LostRecord(record, offset, f"it has no {field.feature!r}"))
            kept &= here
        return kept, bad

    def _field(
        self, field: IndexedField, batch: pa.RecordBatch, number: int | None, rows: Array, record: Array
    ) -> dict[str, Any]:
        """Where the field lies; a missing or empty one lies at the beginning of its record and has no bytes."""
        first, size = record + HEADER_BYTES, np.zeros(len(rows), np.int64)
        values: Any = pa.nulls(len(rows), self.types[field.name]) if field.column else None
        if number is not None:
            kind = batch.column(f"{number}.kind").to_numpy()[rows]
            size = np.where(kind > MISSING, batch.column(f"{number}.size").to_numpy()[rows], 0)
            offset = batch.column(f"{number}.offset").to_numpy()[rows]
            if field.codec["codec"] in ("encoded", "text", "raw"):  # one string, without its tag and length
                head = np.where(size > 0, head_bytes(size), 0)
                offset, size = offset + head, size - head
            first = np.where(size > 0, offset, first)
            if field.column and f"{number}.value" in batch.schema.names:
                values = batch.column(f"{number}.value").take(pa.array(rows))
        columns = {f"{field.name}_offset": first, f"{field.name}_size": size.astype(np.int32)}
        return columns | ({field.name: values} if field.column else {})

    def _sides(self, batch: pa.RecordBatch, number: int | None, rows: Array) -> dict[str, Any]:
        sides = {}
        for side in ("height", "width"):
            name = f"{number}.{side}"
            known = name in batch.schema.names
            values = batch.column(name).to_numpy()[rows] if known else np.zeros(len(rows), np.int32)
            sides[side] = pa.array(values, mask=values == 0)
        return sides


def _cast(values: Any, dtype: pa.DataType) -> pa.Array:
    array = values if isinstance(values, pa.Array) else pa.array(values)
    return array if array.type == dtype else array.cast(dtype)

"""Filling the rows of a batch: read a record's fields by offset, decode each straight into its row."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from tfprep.codecs import Codec, InPlace, Raw, Scalar, Text
from tfprep.errors import RecordError, SampleError
from tfprep.fields import Array, FieldSpec
from tfprep.read.batch import Batch
from tfprep.read.files import Files
from tfprep.read.numbers import unpack
from tfprep.read.outputs import Output
from tfprep.read.record import Record, Scratch, Span, read_fields
from tfprep.read.table import Table


@dataclass(frozen=True)
class Part:
    """One field on its way into an output: into the whole of it, or into the channels [first, last) of a stack."""

    field: str
    codec: Codec
    spec: FieldSpec
    output: Output
    channels: tuple[int, int] | None = None

    @property
    def in_place(self) -> bool:
        """Whether it is decoded straight into its row."""
        return self.channels is None and None not in self.spec.shape and self.spec.dtype == self.output.dtype

    @property
    def direct(self) -> bool:
        """Whether its bytes are the row: nothing to decode."""
        return self.in_place and isinstance(self.codec, Raw) and sys.byteorder == "little"

    def store(self, content: Array, batch: Batch, row: int) -> None:
        """Decode `content` into the batch; SampleError where it cannot be."""
        values = batch.values[self.output.name]
        if isinstance(self.codec, Text):
            values[row] = content.tobytes()
        elif isinstance(self.codec, Scalar):
            values[row] = self.codec.decode(unpack(content, self.spec.dtype), self.spec)
        elif self.in_place:
            cast(InPlace, self.codec).decode_into(content, self.spec, values[row])
        elif self.channels is None:
            values[row] = self.codec.decode(content, self.spec)
        else:
            self._stack(self.codec.decode(content, self.spec), values[row])

    def _stack(self, pixels: Array, row: Array) -> None:
        assert self.channels is not None
        first, last = self.channels
        np.copyto(row[..., first:last], pixels.reshape(*pixels.shape[:2], -1))


class Filler:
    """Fills batches from one table. Called by many threads at once, each with scratch memory of its own."""

    def __init__(
        self, table: Table, parts: Sequence[Part], extra: Mapping[str, str], files: Files, *, verify: bool
    ) -> None:
        """`extra` names the outputs that are not read from records, and what they are: "key" or "variant"."""
        self._table = table
        self._extra = extra
        self._parts = parts
        self._files = files
        self._verify = verify
        self._order = sorted(
            {part.field for part in parts}, key=lambda name: name.encode()
        )  # as features stand in an Example
        self._direct = {part.field: part for part in parts if part.direct}

    def begin(self, batch: Batch) -> None:
        """Fill in what the index knows: keys and variants."""
        for name, value in batch.values.items():
            if name not in self._extra:
                continue
            if self._extra[name] == "variant":
                value[:] = batch.picks.variant
            else:
                keys = self._table.keys()
                value[:] = [keys[row].encode("utf-8", "surrogateescape") for row in batch.picks.row]

    def fill(self, batch: Batch, start: int, stop: int, scratch: Scratch) -> None:
        """Fill the rows [start, stop)."""
        for row in range(start, stop):
            self.fill_row(batch, row, scratch)

    def fill_row(self, batch: Batch, row: int, scratch: Scratch) -> None:
        """Read and decode one row; RecordError names file, record and key."""
        number, variant = int(batch.picks.row[row]), int(batch.picks.variant[row])
        places = self._table.places(variant)
        record = Record(
            self._table.path(variant, int(places.shard[number])), int(places.offset[number]), int(places.size[number])
        )
        try:
            contents = self._read(record, places, number, batch, row, scratch)
            for part in self._parts:
                if part.field in contents and part.field not in self._direct:
                    part.store(contents[part.field], batch, row)
        except (RecordError, SampleError) as error:
            raise self._located(error, record, variant, number) from error

    def _read(
        self, record: Record, places: Any, number: int, batch: Batch, row: int, scratch: Scratch
    ) -> Mapping[str, Array]:
        spans = [
            Span(
                name,
                int(places.field_offset[name][number]),
                int(places.field_size[name][number]),
                self._target(name, batch, row),
            )
            for name in self._order
        ]
        return read_fields(self._files, record, spans, scratch, verify=self._verify) if spans else {}

    def _target(self, name: str, batch: Batch, row: int) -> Array | None:
        part = self._direct.get(name)
        return None if part is None else batch.values[part.output.name][row].reshape(-1).view(np.uint8)

    def _located(self, error: RecordError | SampleError, record: Record, variant: int, number: int) -> RecordError:
        key = self._table.key(variant, number)
        inside = self._table.number_in_shard(variant, number)
        reason = f"{error.reason} (key {key!r})"
        return RecordError(reason, path=str(record.path), record=inside, offset=record.offset)

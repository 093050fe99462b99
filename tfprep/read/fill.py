"""Filling the rows of a batch: read a record's fields by offset, decode each straight into its row."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tfprep.augment.transform import GeometryOp
from tfprep.augment.warp import warp_sample
from tfprep.errors import RecordError, SampleError
from tfprep.fields import RASTER_KINDS, Array, Kind, raster_size
from tfprep.read.bad import ATTEMPTS, BadRecords, too_many
from tfprep.read.batch import Batch
from tfprep.read.cache import DecodedCache, EncodedCache
from tfprep.read.files import Files
from tfprep.read.options import Verify
from tfprep.read.parts import FieldPart
from tfprep.read.record import Record, Span, read_fields
from tfprep.read.schedule import Numbers
from tfprep.read.table import Places, Table
from tfprep.read.values import transform_of
from tfprep.read.worker import Worker

Substitute = Callable[[int, int], int]
"""(place in the run, attempt) to the row that takes the place of one that cannot be read."""


@dataclass(frozen=True)
class Policy:
    """How records are read: which checksums are compared, what happens to bad ones, and the geometry on the way in."""

    verify: Verify
    bad: BadRecords
    substitute: Substitute | None
    geometry: Sequence[GeometryOp] = ()


class Filler:
    """Fills batches from one table. Called by many threads at once, each with a worker of its own."""

    def __init__(
        self,
        table: Table,
        parts: Sequence[FieldPart],
        extra: Mapping[str, str],
        policy: Policy,
        cache: DecodedCache | EncodedCache | None,
    ) -> None:
        """`extra` names the outputs that are not read from records, and what they are: "key" or "variant"."""
        self._table, self._parts, self._extra, self._policy = table, parts, extra, policy
        self._files = Files()
        self._decoded = cache if isinstance(cache, DecodedCache) else None
        self._encoded = cache if isinstance(cache, EncodedCache) else None
        self._fields = sorted({part.field for part in parts}, key=lambda name: name.encode())  # as in an Example
        self._whole = any(part.whole_example for part in parts)
        self._direct = {part.field: part for part in parts if part.direct and not self._whole}
        self._kinds: dict[str, Kind] = {part.field: part.spec.kind for part in parts}
        self._verified = np.zeros(table.records, np.uint8)
        self._lock = threading.Lock()

    def close(self) -> None:
        self._files.close()

    def forget(self) -> None:
        """Let go of the cache."""
        self._decoded = self._encoded = None

    def fill(self, batch: Batch, start: int, stop: int, worker: Worker) -> None:
        """Fill the rows [start, stop)."""
        records = self._table.record(batch.picks.row[start:stop], batch.picks.variant[start:stop])
        rows: Sequence[int] | Numbers = range(stop - start)
        if self._decoded is not None:
            worker.enter("read")
            held = self._decoded.fetch(batch.values, start, records)
            rows = np.flatnonzero(~held)
            worker.cached += len(records) - len(rows)
        for row in rows:
            self._row(batch, start + int(row), int(records[row]), worker)
        worker.records += len(records)

    def finish(self, batch: Batch) -> None:
        """Fill in what the index knows, and close the gaps of rows that were lost."""
        for name, what in self._extra.items():
            if what == "variant":
                batch.values[name][:] = batch.picks.variant
            else:
                keys = self._table.column("key").take(batch.picks.row).to_pylist()
                batch.values[name][:] = [key.encode("utf-8", "surrogateescape") for key in keys]
        if batch.lost:
            batch.drop_lost()

    # --- one row ----------------------------------------------------------------------------------------------------

    def _row(self, batch: Batch, row: int, record: int, worker: Worker) -> None:
        """Fill one row, or by the policy put another sample into it, or note it as lost."""
        bad, substitute = self._policy.bad, self._policy.substitute
        for attempt in range(ATTEMPTS):
            if not bad.known(record):
                try:
                    self._fill(batch, row, record, worker)
                    return
                except (RecordError, SampleError) as error:
                    located = self._located(error, record, int(batch.picks.row[row]))
                    if bad.on_bad == "raise":
                        raise located from error
                    bad.note(record, self._table.key(int(batch.picks.row[row])), located)
            if attempt == 0:
                bad.lost()
            if substitute is None:
                batch.lost.append(row)
                return
            batch.picks.row[row] = substitute(int(batch.picks.place[row]), attempt)
            record = int(self._table.record(batch.picks.row[row : row + 1], batch.picks.variant[row : row + 1])[0])
        raise too_many(int(batch.picks.place[row]))

    def _fill(self, batch: Batch, row: int, record: int, worker: Worker) -> None:
        places = self._table.places
        worker.path, worker.offset = self._table.files[places.file[record]], int(places.offset[record])
        worker.enter("read")
        contents = self._contents(places, record, batch, row, worker)
        worker.enter("decode")
        if self._policy.geometry:
            self._store_warped(contents, batch, row, worker)
        else:
            for part in self._parts:
                if part.field not in self._direct:
                    part.store(contents["" if part.whole_example else part.field], batch.values, row, worker)
        if self._decoded is not None:
            self._decoded.store(batch.values, row, record)

    def _contents(self, places: Places, record: int, batch: Batch, row: int, worker: Worker) -> Mapping[str, Array]:
        if not self._fields:
            return {}
        if self._encoded is not None and (held := self._encoded.fetch(record)) is not None:
            worker.cached += 1
            for name, part in self._direct.items():
                part.store(held[name], batch.values, row, worker)
            return held
        frame = Record(self._table.files[places.file[record]], int(places.offset[record]), int(places.size[record]))
        spans = [
            Span(
                name,
                int(places.field_offset[name][record]),
                int(places.field_size[name][record]),
                self._target(name, batch, row, int(places.field_size[name][record])),
            )
            for name in self._fields
        ]
        verify = self._must_verify(record)
        contents = read_fields(self._files, frame, spans, worker.scratch, verify=verify, whole=self._whole)
        worker.bytes += frame.size if verify or self._whole else sum(span.size for span in spans)
        self._verified[record] = 1
        if self._encoded is not None:
            self._encoded.store(record, contents)
        return contents

    def _must_verify(self, record: int) -> bool:
        verify = self._policy.verify
        return verify == "always" or (verify == "first_epoch" and not self._verified[record])

    def _target(self, name: str, batch: Batch, row: int, size: int) -> Array | None:
        """Where a field's bytes are read to; None for scratch memory."""
        part = self._direct.get(name)
        if part is None:
            return None
        target: Array = batch.values[part.output.name][row : row + 1].reshape(-1).view(np.uint8)
        if len(target) != size:
            raise SampleError(f"'{name}' holds {size} bytes, expected {len(target)}")
        return target

    def _store_warped(self, contents: Mapping[str, Array], batch: Batch, row: int, worker: Worker) -> None:
        sample = {
            part.field: part.decode(contents["" if part.whole_example else part.field], worker) for part in self._parts
        }
        size = raster_size(sample, self._kinds)
        if size is not None:
            transform = transform_of(self._policy.geometry, size)
            kinds = {name: kind for name, kind in self._kinds.items() if kind in RASTER_KINDS | {"boxes", "points"}}
            sample = dict(warp_sample(sample, kinds, transform, border="constant", fill={}, size=size))
        for part in self._parts:
            part.place(sample[part.field], batch.values, row)

    def _located(self, error: RecordError | SampleError, record: int, row: int) -> RecordError:
        """The error with the file, the record's number in it, and the sample's key."""
        places = self._table.places
        return RecordError(
            f"{error.reason} (key {self._table.key(row)!r})",
            path=str(self._table.files[places.file[record]]),
            record=self._table.number_in_file(record),
            offset=int(places.offset[record]),
        )

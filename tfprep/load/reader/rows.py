"""The row function: read the bytes of a sample, check them, decode, transform, write into the row of a batch.

`Rows` says where the records are, as one array of numbers, so that it can be sent to another process as it is. `RowReader`
fills rows, in a reading thread or a worker process, and returns those that cannot be read. What happens to those is decided by
`tfprep.load.reader.batch`, in the process that trains.

With geometry, derived fields or color, the fields of a sample are decoded, go through the stages of each view
(`tfprep.recipe.sample`), and are written into their row. A JPEG is decoded at 1/2, 1/4 or 1/8 where the window of every view is
so large that nothing is lost. All fields keep their geometry: the stages count in pixels of the whole image.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from tfprep import images
from tfprep.augment.aligned import cut
from tfprep.augment.warp import reduction_for
from tfprep.codecs import Codec, Raw, Scalar, feature_value
from tfprep.errors import BuildError, LoaderError, RecordError, SampleError
from tfprep.fields import RASTER_KINDS, Array, FieldSpec, Size
from tfprep.load.augmentation import Augmentation
from tfprep.load.order.samplers import Numbers
from tfprep.load.outputs import PADDING, Output, channels_of
from tfprep.load.reader.files import ByteSpans, Files
from tfprep.load.threads import ThreadState
from tfprep.optional import HAS_OPENCV, cv2
from tfprep.records import Frame, check_frame, unpack
from tfprep.records import decode as decode_example
from tfprep.records.framing import FOOTER_BYTES, HEADER_BYTES

# --- which rows -------------------------------------------------------------------------------------------------------

COLUMNS = ("row", "sample", "variant", "position", "form", "record", "label", "verify")
"""The columns of `Rows` before those of the places."""
ROW, POSITION, FORM, VERIFY = (COLUMNS.index(name) for name in ("row", "position", "form", "verify"))
PLACE = ("offset", "size", "payload_crc")
"""The columns that say where a record is in its file."""

GAP_BYTES = 4096
"""Bytes between two fields of a record that are read along with them: a page, which the kernel copies faster than it is
called."""


@dataclass(frozen=True)
class Rows:
    """Some rows of a batch and where their records are: int64 [columns, rows].

    The columns are those of `COLUMNS`, then for each `Place` the number of the file, those of `PLACE`, and the offset and the
    size of each field. `row` is the place in the batch; `sample` is the row of the table, whose `variant` is read at `position`
    of the run; `form` is the number of the batch's size; `label` is the one that the index holds, 0 if it is not wanted;
    `verify` is 1 where checksums are to be compared.
    """

    table: Numbers

    def __len__(self) -> int:
        return int(self.table.shape[1])

    def __getitem__(self, name: str) -> Numbers:
        column: Numbers = self.table[COLUMNS.index(name)]
        return column

    @property
    def place(self) -> tuple[Numbers, Numbers, Numbers]:
        """File, offset and size of each record of the dataset itself."""
        file, offset, size = self.table[len(COLUMNS) : len(COLUMNS) + 3]
        return file, offset, size

    def take(self, which: Any) -> Rows:
        return Rows(self.table[:, which])


class UnreadRow(NamedTuple):
    """A row that cannot be read: its number among `Rows`, and why."""

    number: int
    reason: str


# --- a field, from its bytes into its outputs -------------------------------------------------------------------------

FEW_CHANNELS = 4
"""Up to this many channels are copied one at a time: NumPy copies an array of pixels of 3 bytes into every fifth, say, pixel by
pixel, which takes five times as long (1.07 ms against 0.23 for 360 x 480). At 16 channels the opposite holds."""


@dataclass(frozen=True, eq=False)
class Target:
    """Where the values of a field go: into an output, or with `channels` (first, last) into a part of its channels.

    The output may be of another dtype than the field, and, after geometry, of another size.
    """

    name: str
    output: Output
    channels: tuple[int, int] | None = None

    def place(self, value: Any, values: Mapping[str, Any], row: int) -> None:
        """Write a value into its row, or its channels of it. SampleError where it does not fit."""
        rows, output = values[self.output.name], self.output
        if output.dtype == "string":
            rows[row] = value if isinstance(value, str) else np.array(value, object)
            return
        value = np.asarray(value)
        if None in output.shape:
            self._check(value, output.shape)
            rows[row] = np.array(value, output.dtype, order="C")
            return
        target = rows[row, ...]
        if output.padded:
            count, most = len(value) if value.ndim else 0, len(target)
            if count > most:
                raise SampleError(f"'{self.name}' has {count} rows, more than pad={{'{self.name}': {most}}} takes")
            target[count:] = PADDING
            target = target[:count]
        if self.channels is not None:
            target = target[..., slice(*self.channels)]
            value = value.reshape(*value.shape[:2], -1)
        self._check(value, target.shape)
        if self.channels is not None and value.shape[2] <= FEW_CHANNELS:
            for channel in range(value.shape[2]):
                np.copyto(target[..., channel], value[..., channel])
        else:
            np.copyto(target, value)

    def _check(self, value: Array, shape: Sequence[int | None]) -> None:
        """Raise SampleError for a value of another shape or type, which a function of the user may have made."""
        sides = zip(shape, value.shape, strict=False)
        if value.shape != shape and (value.ndim != len(shape) or any(side not in (None, size) for side, size in sides)):
            raise SampleError(f"'{self.name}' has shape {value.shape}, in the other records it has {tuple(shape)}")
        if value.dtype != self.output.dtype and not np.can_cast(value.dtype, self.output.dtype, "same_kind"):
            raise SampleError(f"'{self.name}' is {value.dtype}, in the other records it is {self.output.dtype}")


@dataclass(frozen=True, eq=False)
class StoredField:
    """A field as records hold it, and where its values go."""

    name: str
    codec: Codec
    spec: FieldSpec
    targets: Sequence[Target]

    @cached_property
    def content(self) -> str:
        """The name of the bytes that it is decoded from: its own, or "" for the whole Example."""
        return "" if self.needs_record else self.name

    @cached_property
    def needs_record(self) -> bool:
        """True if other features of the record are needed: an array with several unknown sizes, boxes of other tools."""
        return self.codec.needs_record(self.spec)

    @cached_property
    def into_array(self) -> bool:
        """True if the codec decodes into an array, and all records have one size."""
        return hasattr(self.codec, "decode_into") and None not in self.spec.shape

    @cached_property
    def into(self) -> str:
        """The output that it is decoded straight into, where nothing is augmented; "" if there is none."""
        for target in self.targets if len(self.targets) == 1 and self.into_array else ():
            if target.channels is None and not target.output.padded and self.spec.dtype == target.output.dtype:
                return target.output.name
        return ""

    @property
    def direct(self) -> bool:
        """True if its bytes are the row: nothing to decode."""
        return bool(self.into) and isinstance(self.codec, Raw) and sys.byteorder == "little"

    def is_jpeg(self, content: Array) -> bool:
        """Return True for a JPEG of 8 bits, whose pixels are delivered as they are in the file."""
        plain = self.codec.holds_jpeg and self.spec.shape[2:] in ((1,), (3,)) and self.spec.dtype == "uint8"
        return plain and images.is_jpeg(content[:3].tobytes())

    def decode_jpeg(self, content: Array, size: Size, reduced: int, state: ThreadState) -> Array:
        """A JPEG of this size decoded at 1 / `reduced`, in memory of the thread, valid until its next call for the field."""
        channels = self.spec.shape[2] or 0
        shape = (-(-size[0] // reduced), -(-size[1] // reduced), channels)
        pixels = state.array(shape, "uint8", f"decoded {self.name}")
        return images.decode_stored_jpeg(content, channels=channels, out=pixels, reduced=reduced)

    def decode(self, content: Array, state: ThreadState) -> Any:
        """The value; an array may be the thread's own, valid until its next call."""
        codec: Any = self.codec
        if self.needs_record:
            return self._from_example(content.tobytes())
        if isinstance(codec, Scalar):
            return self._numbers(content)
        if not self.into_array:
            return codec.decode(content.tobytes(), self.spec)
        if isinstance(codec, Raw) and np.dtype(self.spec.dtype).itemsize == 1:
            return codec.decode(content, self.spec)  # the bytes themselves, which are aligned
        array = state.array(tuple(size or 0 for size in self.spec.shape), self.spec.dtype, f"decoded {self.name}")
        codec.decode_into(content, self.spec, array)
        return array

    def _from_example(self, payload: bytes) -> Array:
        try:
            value, shape = feature_value(self.codec, decode_example(payload), self.name)
            return np.array(self.codec.decode(value, self.spec, shape))
        except (ValueError, TypeError, OverflowError) as error:  # no Example, or one of other types
            raise SampleError(str(error)) from error

    def _numbers(self, content: Array) -> Array:
        numbers = unpack(content, self.spec.dtype)
        shape = [-1 if size is None else size for size in self.spec.shape]
        try:
            return numbers.reshape(shape)
        except ValueError:
            raise SampleError(f"'{self.name}' holds {len(numbers)} numbers, expected shape {shape}") from None


def targets_of(outputs: Sequence[Output], specs: Mapping[str, FieldSpec]) -> list[Target]:
    """The target of every field in every output; LoaderError for stacked fields whose samples differ in size."""
    targets = []
    for output in outputs:
        if output.stacked and None in output.shape:
            raise LoaderError(
                f"{output.name!r} stacks {', '.join(output.fields)}, whose samples differ in size: make them one size by "
                "geometry=[..., augment.Resize(224, 224)], or name them in a dict"
            )
        first = 0
        for name in output.fields:
            last = first + (channels_of(specs[name]) if output.stacked else 0)
            targets.append(Target(name, output, (first, last) if output.stacked else None))
            first = last
    return targets


# --- the stages of a sample -------------------------------------------------------------------------------------------


class Augmenter:
    """Fills rows by way of the stages of a sample. Called by many threads at once, each with a state of its own."""

    def __init__(self, fields: Sequence[StoredField], targets: Sequence[Target], augmentation: Augmentation) -> None:
        self._augmentation = augmentation
        self._fields = {field.name: field for field in fields}
        own = [target for target in targets if target.name in self._fields or target.name in augmentation.derived]
        self._targets = [[one for one in own if one.output.view == view] for view in range(len(augmentation.views))]
        first, *others = ({target.name for target in targets} for targets in self._targets)
        self._shared = first.difference(*others) if others and augmentation.has_custom else set[str]()
        """The fields that all views have once, and a function of whole samples may change."""
        self._rasters = [field for field in fields if field.spec.kind in RASTER_KINDS]
        sizes = {field.spec.shape[:2] for field in self._rasters}
        forms = [stages for view in augmentation.views for stages in view.forms]
        size = sizes.pop() if len(sizes) == 1 and all(stages.only_cuts for stages in forms) else (None,)
        self._cut_from: Any = None if None in size else size
        """The size of all rasters where stages only cut them."""

    def fill(
        self, contents: Mapping[str, Array], values: Mapping[str, Any], cells: Sequence[int], state: ThreadState
    ) -> None:
        """Fill the row `cells` of `Rows` from the bytes of its fields by name, or of the whole Example as "".

        Raises:
            SampleError: They cannot be decoded, or a stage cannot work on them.
            LoaderError: A function imports a module that is not installed.
        """
        if self._cut_from is not None and self._cut(contents, values, cells, state):
            return
        row, form, position, augmentation = cells[ROW], cells[FORM], cells[POSITION], self._augmentation
        bytes_of = {name: contents[field.content] for name, field in self._fields.items()}
        sample: dict[str, Any] = {}
        jpegs = {field.name for field in self._rasters if field.is_jpeg(bytes_of[field.name])}
        size = self._size(bytes_of, jpegs, sample, state)
        views = [(view.forms[form], augmentation.draws(view, position)) for view in augmentation.views]
        try:
            transforms = [stages.transform(draws, size) for stages, draws in views]
            reduced = 1
            if jpegs:
                reduced = min(1 if transform is None else reduction_for(transform) for transform in transforms)
            self._decode(bytes_of, jpegs, sample, size, reduced, state)
            shared: dict[str, bytes] = {}
            for (stages, draws), transform, targets in zip(views, transforms, self._targets, strict=True):
                made = stages.make(sample, draws, size=size, transform=transform, reduced=reduced)
                if lost := next((target.name for target in targets if target.name not in made), None):
                    raise SampleError(f"a function in geometry returned no '{lost}'")
                for name in self._shared:
                    content = np.asarray(made[name]).tobytes()
                    if shared.setdefault(name, content) != content:
                        raise SampleError(
                            f"a function in geometry made '{name}' differ between views; derive it instead"
                        )
                for target in targets:
                    target.place(self._made(target.name, made[target.name]), values, row)
        except BuildError as error:
            raise LoaderError(str(error)) from error

    def _cut(
        self, contents: Mapping[str, Array], values: Mapping[str, Any], cells: Sequence[int], state: ThreadState
    ) -> bool:
        """Do what `fill` does where stages only cut rasters; return False if a window exceeds them."""
        augmentation, form, position, row = self._augmentation, cells[FORM], cells[POSITION], cells[ROW]
        size: Size = self._cut_from
        windows = [view.forms[form].window(augmentation.draws(view, position), size) for view in augmentation.views]
        if not all(window.is_inside(size) for window in windows):
            return False
        for field in self._fields.values():
            is_raster = field.spec.kind in RASTER_KINDS
            value = self._made(field.name, field.decode(contents[field.content], state))
            if is_raster:
                self._check_size(value, [size])
            for target in field.targets:
                target.place(cut(value, windows[target.output.view]) if is_raster else value, values, row)
        return True

    def _size(
        self, bytes_of: Mapping[str, Array], jpegs: Set[str], sample: dict[str, Any], state: ThreadState
    ) -> Size | None:
        """The size of the sample's rasters: by the spec, by a JPEG's header, or of the first one, decoded into `sample`."""
        if not self._rasters:
            return None
        field = self._rasters[0]
        height, width = field.spec.shape[:2]
        if height is not None and width is not None:
            return height, width
        if field.name in jpegs:
            return images.stored_size(bytes_of[field.name].tobytes())
        sample[field.name] = field.decode(bytes_of[field.name], state)
        height, width = sample[field.name].shape[:2]
        return int(height), int(width)

    def _decode(
        self,
        bytes_of: Mapping[str, Array],
        jpegs: Set[str],
        sample: dict[str, Any],
        size: Size | None,
        reduced: int,
        state: ThreadState,
    ) -> None:
        for name, field in self._fields.items():
            allowed = [size]
            if size is not None and name not in sample and name in jpegs:
                sample[name] = field.decode_jpeg(bytes_of[name], size, reduced, state)
                allowed.append((-(-size[0] // reduced), -(-size[1] // reduced)))  # or whole, where it has to be
            elif name not in sample:
                sample[name] = field.decode(bytes_of[name], state)
            if field in self._rasters:
                self._check_size(sample[name], allowed)

    def _check_size(self, value: Array, allowed: Sequence[Size | None]) -> None:
        if (own := np.shape(value)[:2]) not in allowed:
            raise SampleError(f"the rasters of a sample have one height and width, not {allowed[0]} and {own}")

    def _made(self, name: str, value: Any) -> Any:
        """The value of a field after all stages, in its dtype, which is that of its codec."""
        derived = self._augmentation.derived.get(name)
        spec, array = derived or self._fields[name].spec, np.asarray(value)
        if array.dtype == spec.dtype or spec.dtype in ("string", array.dtype.name):  # the name takes ten times as long
            return value
        if derived is None and spec.kind in RASTER_KINDS:
            raise SampleError(f"a function in geometry made '{name}' {array.dtype}; it stays {spec.dtype}")
        if array.dtype.kind == "f" and np.dtype(spec.dtype).kind in "biu":  # refused where it is written
            return value
        stored = Raw(spec.dtype)
        try:
            made = stored.decode(stored.encode(array)[""], stored.spec(spec.kind, array))
            if array.dtype.kind in "iu" and (lost := array[made.astype(array.dtype) != array]).size:
                raise SampleError(f"'{name}' is {spec.dtype} by its first sample, which does not hold {lost.flat[0]}")
            return made
        except SampleError as error:
            raise error.located(stage="geometry" if derived is None else "derive", field=name) from error


# --- the row function -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """The files, the fields that are read, and the stages of each sample.

    Attributes:
        paths: The files.
        imported: Whether each file is one of another tool, which may write to it: the checksum of a record is compared at each
            reading, but not at a URL, where another object is noticed.
        fields: The fields that are read, from each of a sample's records: that of the dataset, and those of added fields.
        targets: Where their values go, and those of fields that are derived.
        augmentation: What happens to each sample.
        announce: The page cache cannot hold all files, so the system is told which bytes come next.
    """

    paths: Sequence[Any]
    imported: Sequence[bool]
    fields: Sequence[Sequence[StoredField]]
    targets: Sequence[Target]
    augmentation: Augmentation | None = None
    announce: bool = False

    @cached_property
    def outputs(self) -> list[Output]:
        """The outputs that the fields fill."""
        return list({target.output.name: target.output for target in self.targets}.values())


def stop_opencv_threads(reading: Reading) -> None:
    """Turn off OpenCV's own threads in this process: they take processors from the threads that fill rows (cv2.setNumThreads)."""
    if HAS_OPENCV and reading.augmentation is not None:
        cv2.setNumThreads(0)


class Place:
    """A record of each sample: that of the dataset, or one of fields that a model added; its columns, and what fills its row."""

    def __init__(self, number: int, reading: Reading, first: int) -> None:
        """`number`: that of the record among those of a sample. `first`: its first column, which is the number of the file."""
        self.first, fields = first, reading.fields[number]
        self.fields = sorted({field.name for field in fields}, key=lambda name: name.encode())  # as in an Example
        self.columns = [*PLACE, *[f"{name}_{what}" for name in self.fields for what in ("offset", "size")]]
        """The names of the columns after that of the file."""
        after = first + 1 + len(PLACE)
        self.spans = [(name, after + 2 * at) for at, name in enumerate(self.fields)]
        """Each field, and the column of its offset; that of its size is the next one."""
        self.whole = any(field.needs_record for field in fields)
        self.augmenter: Augmenter | None = None
        if reading.augmentation is not None and number == 0:  # the plan refuses added fields that geometry would move
            self.augmenter = Augmenter(fields, reading.targets, reading.augmentation)
        self.decoded = [] if self.augmenter else fields
        self.direct = {field.name: field.into for field in self.decoded if field.direct}
        """Fields whose bytes are read into rows of an output, and these outputs."""


class RowReader:
    """Fills rows. Called by many threads at once, each with a state of its own."""

    def __init__(self, reading: Reading) -> None:
        self.files, self._announce = Files(reading.paths), reading.announce
        self._may_change = (np.array(reading.imported, bool) & ~self.files.remote).tolist()
        self.maps = False
        """True if records whose checksums were compared before are read from mappings (`Files.mapping`)."""
        self.places: list[Place] = []
        self.columns = len(COLUMNS)
        """The number of columns of `Rows`."""
        for number in range(len(reading.fields)):
            self.places.append(place := Place(number, reading, self.columns))
            self.columns += 1 + len(place.columns)
        self.read_places = [place for place in self.places if place.fields or place.augmenter]  # derived from no field

    def byte_spans(self, rows: Rows) -> ByteSpans:
        """The bytes at URLs that reading these rows takes."""
        spans: list[list[Numbers]] = []
        for place in self.read_places:
            file, offset, size = rows.table[place.first : place.first + 3]
            every = (rows["verify"] != 0) | place.whole
            whole, some = np.flatnonzero(every), np.flatnonzero(~every)
            spans.append([whole, file[whole], offset[whole], offset[whole] + size[whole]])
            for _, column in place.spans:
                start, length = rows.table[column][some], rows.table[column + 1][some]
                spans.append([some, file[some], start, start + length])
        empty = [np.empty(0, np.int64)] * len(ByteSpans._fields)
        joined = ByteSpans(*(np.concatenate(column) for column in zip(empty, *spans, strict=True)))
        remote = self.files.remote[joined.file]
        return ByteSpans(*(column[remote] for column in joined))

    def fill(self, values: Mapping[str, Any], rows: Rows, state: ThreadState) -> list[UnreadRow]:
        """Fill the rows of the arrays in `values`; return those that cannot be read."""
        table, unread = rows.table.T.tolist(), []
        if self._announce or (len(table) > 1 and rows["verify"].any()):
            for cells in table:  # all at once: a thread that waits for one after the other would be slower
                for place in self.read_places:
                    self.files.will_need(*cells[place.first : place.first + 3])
        raw = {
            name: values[into].reshape(len(values[into]), -1).view(np.uint8)
            for place in self.read_places
            for name, into in place.direct.items()
        }
        for number, cells in enumerate(table):
            if reason := self._fill_row(values, raw, cells, state):
                unread.append(UnreadRow(number, reason))
        return unread

    def _fill_row(
        self, values: Mapping[str, Any], raw: Mapping[str, Array], cells: Sequence[int], state: ThreadState
    ) -> str:
        """Fill a row; return why it cannot be read, "" if it was. `raw`: the rows of direct fields as bytes."""
        for place in self.read_places:
            state.path, state.offset = self.files.paths[cells[place.first]], cells[place.first + 1]
            try:
                state.enter("read")
                if not (contents := self._read(raw, place, cells, state)) and place.augmenter is None:
                    continue  # all of it was read into its row
                state.enter("decode")
                if place.augmenter is not None:
                    place.augmenter.fill(contents, values, cells, state)
                    continue
                for field in place.decoded:
                    if (content := contents.get(field.content)) is None:  # it was read into its row
                        continue
                    if field.into:
                        codec: Any = field.codec
                        codec.decode_into(content, field.spec, values[field.into][cells[ROW], ...])
                        continue
                    value = field.decode(content, state)
                    for target in field.targets:
                        target.place(value, values, cells[ROW])
            except (RecordError, SampleError) as error:
                stage = f"{error.place}: " if isinstance(error, SampleError) and error.stage else ""
                added = "" if place is self.places[0] else f" ({state.path}, added fields)"
                return f"{stage}{error.reason}{added}"
        return ""

    def _read(
        self, raw: Mapping[str, Array], place: Place, cells: Sequence[int], state: ThreadState
    ) -> Mapping[str, Array]:
        """Return the bytes of each field, valid until the next call; raw fields are read into their rows instead."""
        number, offset, size, crc = cells[place.first : place.first + 4]
        verify = cells[VERIFY] or self._may_change[number]
        if verify or place.whole:
            state.bytes_read += size
            frame = self.files.read(number, offset, state.room(size, "record"), state.fetched)
            if verify:
                check_frame(frame, self.files.paths[number], Frame(offset, size), payload_crc=crc)
            contents = {name: frame[cells[at] - offset :][: cells[at + 1]] for name, at in place.spans}
            return contents | {"": frame[HEADER_BYTES:-FOOTER_BYTES]} if place.whole else contents
        contents = {}
        mapping = self.files.mapping(number) if self.maps else None
        spans, first, last, wanted = [], offset + size, offset, 0
        for name, at in place.spans:
            start, length = cells[at], cells[at + 1]
            state.bytes_read += length
            target = raw[name][cells[ROW]] if name in raw and not self.files.remote[number] else None
            if target is not None and len(target) != length:
                target = None
            if mapping is not None and start + length <= len(mapping):
                if target is not None:
                    target[...] = mapping[start : start + length]
                else:
                    contents[name] = mapping[start : start + length]
            elif target is not None:
                self.files.read(number, start, target)
            else:
                spans.append((name, start, length))
                first, last, wanted = min(first, start), max(last, start + length), wanted + length
        if spans and last - first <= wanted + GAP_BYTES:  # they are together
            content = self.files.read(number, first, state.room(last - first, "record"), state.fetched)
            return contents | {name: content[start - first : start - first + length] for name, start, length in spans}
        for name, start, length in spans:
            contents[name] = self.files.read(number, start, state.room(length, f"bytes of {name}"), state.fetched)
        return contents

"""The graph path's dataset: the elements of the direct path, bit for bit, from TensorFlow ops.

steps -> positions -> runs of neighbouring records -> TFRecordDataset from each run's offset -> back into order
      -> parse_single_example -> the codecs' tf_decode -> batch
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from tfprep.codecs import Raw
from tfprep.dataset import Dataset
from tfprep.errors import DatasetError, LoaderError, RecordError
from tfprep.limits import usable_cpus
from tfprep.load.graph.order import at, record
from tfprep.load.outputs import PADDING, Output
from tfprep.load.pipeline import Pipeline
from tfprep.load.reader.table import RecordTable
from tfprep.records.framing import FOOTER_BYTES, OTHER_RECORD, footer_crc

READS = 16
"""Runs of records that are read at the same time: as many as the direct path's threads for a URL."""
CHUNKS = 2
"""Batches (in block order: windows) whose records are read at the same time, so that reading goes on while one is taken."""
MOST_BUFFER = 4 << 20
"""The most bytes of one read. A shorter run of records is one read."""


def graph_dataset(pipeline: Pipeline) -> Callable[[Any, Any], tf.data.Dataset]:
    """A function that makes the dataset of a pipeline's batches.

    Args:
        pipeline: The samples and the options.

    Returns:
        A function of (first, stop) that returns the batches of these steps, in the structure of the pipeline's outputs.

    Raises:
        LoaderError: The options include some that `not_in_graph` names.
        RecordError: A shard holds other records than the index describes.
    """
    _check(pipeline)
    _check_shards(pipeline.table)
    schedule, options = pipeline.schedule, pipeline.options
    rows, _ = _local_rows(pipeline)
    decode = _Decoder(pipeline)
    threads = options.threads or usable_cpus()

    def batches(first: Any, last: Any) -> tf.data.Dataset:
        read = _records(pipeline, first, last).map(decode, num_parallel_calls=threads, deterministic=True)
        ragged = pipeline.outputs.ragged
        fixed = (schedule.remainder != "keep" and schedule.epochs is None) or schedule.remainder == "drop"
        join = read.ragged_batch if ragged else read.batch
        return join(rows, drop_remainder=fixed)

    if schedule.remainder != "keep" or schedule.epochs is not None:
        return batches
    per_epoch = schedule.steps_per_epoch

    def by_epoch(first: Any, stop: Any) -> tf.data.Dataset:
        epochs = tf.data.Dataset.range(first // per_epoch, (stop - 1) // per_epoch + 1)
        return epochs.flat_map(
            lambda epoch: batches(tf.maximum(epoch * per_epoch, first), tf.minimum((epoch + 1) * per_epoch, stop))
        )

    return by_epoch


def not_in_graph(pipeline: Pipeline) -> list[str]:
    """The options in use that TensorFlow ops alone cannot implement, by name."""
    options = pipeline.options
    unsupported = {
        "geometry": bool(options.geometry),
        "at_load": bool(options.at_load),
        "on_bad='skip'": options.on_bad == "skip",
        "verify='never'": options.verify == "never",
        "cache": options.cache not in ("auto", False),
        "local": options.local is not None,
    }
    if not _same_features(pipeline):
        unsupported["an index of TFRecords in a mix with others, or arrays' bytes declared by hand"] = True
    if _local_rows(pipeline)[1] == 0:
        unsupported["an empty last batch of this host (use remainder='drop', or fewer hosts)"] = True
    return [name for name, used in unsupported.items() if used]


def _same_features(pipeline: Pipeline) -> bool:
    """Whether the names of features are the same in all datasets, and the ops find what they need in each record."""
    indexes = [source.dataset.external for source in pipeline.sources]
    if all(index is None for index in indexes):
        return True
    fields = [name for name in pipeline.outputs.fields if name in pipeline.specs]
    named = {tuple(_feature_names(source.dataset, fields).values()) for source in pipeline.sources}
    return len(named) == 1 and not any(isinstance(pipeline.dataset.codecs[name], Raw) for name in fields)


def _feature_names(dataset: Dataset, fields: Iterable[str]) -> dict[str, str]:
    """The name of each field's feature in the Examples."""
    return {name: name if dataset.external is None else dataset.external.feature(name) for name in fields}


def _check(pipeline: Pipeline) -> None:
    unsupported = not_in_graph(pipeline)
    if unsupported:
        way_out = "use path='direct'"
        if pipeline.options.at_load:
            way_out += ", or put these ops into the recipe's geometry and build more variants"
        raise LoaderError(f"path='graph' is TensorFlow ops alone and cannot do {', '.join(unsupported)}; {way_out}")


def _check_shards(table: RecordTable) -> None:
    """Compare the checksums of each shard's first and last record with the index.

    TensorFlow's ops check that a record is whole, but not which one it is. Shards that were exchanged, or are of another build,
    differ in every record.
    """
    ends = table.file_ends
    firsts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])[np.diff(ends, prepend=0) > 0]
    ends = np.unique(np.concatenate([firsts, ends[np.diff(ends, prepend=0) > 0] - 1]))
    with ThreadPoolExecutor(READS, "tfprep-check") as pool:
        list(pool.map(partial(_check_record, table), ends.tolist()))


def _check_record(table: RecordTable, record: int) -> None:
    place = table.locate(np.array([record]), ["offset", "size", "payload_crc"])
    path, offset, size = str(table.files[int(table.file_of(record))]), int(place["offset"][0]), int(place["size"][0])
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            file.seek(offset + size - FOOTER_BYTES)
            footer = file.read(FOOTER_BYTES)
    except tf.errors.OpError as error:
        raise DatasetError(f"{path} cannot be read ({type(error).__name__}: {error.message})") from error
    if len(footer) < FOOTER_BYTES:
        raise RecordError("the file ends before it", path=path, record=None, offset=offset)
    if footer_crc(footer) != place["payload_crc"][0]:
        raise RecordError(OTHER_RECORD, path=path, record=None, offset=offset)


def _local_rows(pipeline: Pipeline) -> tuple[int, int]:
    """The numbers of this host's samples in a full batch and in the smallest batch."""
    schedule = pipeline.schedule
    sizes = [schedule.span(step) for step in (0, schedule.steps_per_epoch - 1)]
    return sizes[0][1] - sizes[0][0], min(stop - start for start, stop in sizes)


# --- reading ------------------------------------------------------------------------------------------------------------


def _records(pipeline: Pipeline, first: Any, last: Any) -> tf.data.Dataset:
    """(payload, row, variant) of every sample of the steps [first, last), in order."""
    order = pipeline.schedule.order
    # In block order the records of a window lie in few runs, which the steps of a window share.
    together = -(-order.block * order.window // pipeline.schedule.batch_size) if order.name == "block" else 1
    chunks = tf.data.Dataset.range(first, last, together).map(lambda step: _positions(pipeline, step, together, last))
    files = _Files(pipeline.table)

    def read(position: Any) -> tf.data.Dataset:
        row, variant = at(pipeline.schedule, position)
        payloads = files.payloads(record(pipeline.table, row, variant))
        return payloads.map(lambda payload: (payload, row, variant))

    return chunks.interleave(read, cycle_length=CHUNKS, num_parallel_calls=CHUNKS, deterministic=True).unbatch()


def _positions(pipeline: Pipeline, step: Any, count: int, last: Any) -> Any:
    """The positions that this host reads in `count` steps from `step` on, but before `last`: int64 [N]."""
    start, stop = _global_span(pipeline, tf.range(step, tf.minimum(step + count, last)))
    index, hosts = pipeline.schedule.hosts.index, pipeline.schedule.hosts.count
    first, end = (start + (stop - start) * number // hosts for number in (index, index + 1))
    return tf.ragged.range(first, end).values


def _global_span(pipeline: Pipeline, step: Any) -> tuple[Any, Any]:
    """The positions [start, stop) of each step on all hosts together: int64 [N] each."""
    schedule = pipeline.schedule
    size = schedule.size
    if schedule.remainder == "wrap":
        start = step * schedule.batch_size
        stop = start + schedule.batch_size
    else:
        epoch, inside = step // schedule.steps_per_epoch, step % schedule.steps_per_epoch
        start = epoch * size + inside * schedule.batch_size
        stop = tf.minimum(start + schedule.batch_size, (epoch + 1) * size)
    return start, stop


class _Files:
    """Where the table's records lie, as tensors."""

    def __init__(self, table: RecordTable) -> None:
        records = np.arange(table.records)
        places = table.locate(records, ["offset", "size"])
        self._paths = tf.constant([str(path) for path in table.files])
        self._file, self._offset, self._size = (
            tf.constant(column.astype(np.int64))
            for column in (table.file_of(records), places["offset"], places["size"])
        )

    def payloads(self, records: Any) -> tf.data.Dataset:
        """A dataset of one element, the payloads of these records: string [N]. Neighbouring records are read in one run."""
        order = tf.argsort(records, stable=True)
        ordered = tf.gather(records, order)
        file = tf.gather(self._file, ordered)
        begins = tf.concat([[True], (ordered[1:] != ordered[:-1] + 1) | (file[1:] != file[:-1])], 0)
        first = tf.where(begins)[:, 0]
        ends = tf.concat([first[1:], tf.size(ordered, tf.int64)[None]], 0)
        begin, last = tf.gather(ordered, first), tf.gather(ordered, ends - 1)
        start = tf.gather(self._offset, begin)
        nbytes = tf.gather(self._offset, last) + tf.gather(self._size, last) - start
        paths = tf.gather(self._paths, tf.gather(file, first))
        runs = tf.data.Dataset.from_tensor_slices((paths, start, nbytes, ends - first))
        read = runs.interleave(_run, cycle_length=READS, num_parallel_calls=READS, deterministic=True).unbatch()
        back = tf.argsort(order, stable=True)
        return read.batch(tf.size(ordered, tf.int64)).map(lambda payloads: tf.gather(payloads, back))


def _run(path: Any, offset: Any, nbytes: Any, count: Any) -> tf.data.Dataset:
    """A dataset of one element: `count` payloads from `offset` on."""
    # TFRecordDataset has no argument for the offset.
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=[path],
        compression_type="",
        buffer_size=tf.clip_by_value(nbytes, 1, MOST_BUFFER),
        byte_offsets=[offset],
    )
    payloads = tf.data.experimental.from_variant(variant, tf.TensorSpec((), tf.string))
    return payloads.take(count).batch(count)


# --- decoding -----------------------------------------------------------------------------------------------------------


class _Decoder:
    """Makes the element of a sample from its payload, row and variant."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._specs, self._codecs = pipeline.specs, pipeline.dataset.codecs
        self._fields = [name for name in pipeline.outputs.fields if name in pipeline.specs]
        self._names = _feature_names(pipeline.dataset, self._fields)
        self._features = {
            feature: kind
            for name in self._fields
            for feature, kind in self._codecs[name].tf_features(self._names[name], self._specs[name]).items()
        }
        wants_key = any(name == "key" for name in pipeline.outputs.fields if name not in pipeline.specs)
        self._keys = tf.constant(pipeline.table.column("key").to_pylist()) if wants_key else None

    def __call__(self, payload: Any, row: Any, variant: Any) -> Any:
        features = tf.io.parse_single_example(payload, self._features) if self._features else {}
        values = {
            name: self._codecs[name].tf_decode(features, self._names[name], self._specs[name]) for name in self._fields
        }
        if self._keys is not None:
            values["key"] = tf.gather(self._keys, row)
        values.setdefault("variant", variant)
        outputs = self._pipeline.outputs
        return outputs.pack({output.name: self._output(output, values) for output in outputs.outputs})

    def _output(self, output: Output, values: Any) -> Any:
        if output.stacked:
            rasters = [values[name] for name in output.fields]
            flat = [raster[..., None] if len(raster.shape) == 2 else raster for raster in rasters]
            common = np.result_type(*(self._specs[name].dtype for name in output.fields))
            value = tf.concat([tf.cast(raster, common.name) for raster in flat], -1)
        else:
            value = values[output.fields[0]]
        if output.padded:
            return _padded(output, value)
        if output.dtype == "string" or value.dtype == tf.dtypes.as_dtype(output.dtype):
            return value
        return tf.cast(self._normalised(output, value), output.dtype)

    def _normalised(self, output: Output, value: Any) -> Any:
        if output.mean is None or output.std is None:
            return value
        wide = np.result_type(value.dtype.as_numpy_dtype, np.float32)
        mean, std = (np.array(numbers, np.float32).astype(wide) for numbers in (output.mean, output.std))
        if len(value.shape) == 2:
            mean, std = mean[0], std[0]
        return (tf.cast(value, wide.name) - mean) / std


def _padded(output: Output, value: Any) -> Any:
    """The rows of a sample, and rows of `PADDING` behind them."""
    missing = output.shape[0] - tf.shape(value)[0]
    message = f"'{output.fields[0]}' has more rows than pad={{'{output.fields[0]}': {output.shape[0]}}} takes"
    with tf.control_dependencies([tf.debugging.assert_non_negative(missing, message)]):
        paddings = [[0, missing], *([0, 0] for _ in output.shape[1:])]
        filled = tf.pad(value, paddings, constant_values=tf.constant(PADDING, value.dtype))
    return tf.ensure_shape(filled, output.shape)

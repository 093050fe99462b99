"""The loader in TensorFlow ops alone: for `gs://`, the tf.data service and serialisation. The same order, the same pixels.

steps ─▶ places ─▶ (file, offset, count) of the runs that lie together ─▶ TFRecordDataset from there ─▶ back into order
      ─▶ parse_single_example ─▶ the codecs' tf_decode ─▶ batch
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfprep.cpus import usable_cpus
from tfprep.errors import LoaderError
from tfprep.load.at_load_graph import GraphAtLoad
from tfprep.load.graph_order import at, record
from tfprep.read.outputs import Output
from tfprep.read.pipeline import Pipeline
from tfprep.read.table import Table

READS = 16
"""Runs of records that are read at the same time."""
CHUNKS = 2
"""Batches (in block order: windows) whose records are read at the same time."""
MOST_BUFFER = 4 << 20
"""Bytes that are read from a file at a time, at most; a shorter run is read at once."""


def graph_dataset(pipeline: Pipeline) -> tf.data.Dataset:
    """Batches from `start_step` on; LoaderError for options that need Python."""
    _check(pipeline)
    schedule, options = pipeline.schedule, pipeline.options
    rows, _ = _local(pipeline)
    stop = np.iinfo(np.int64).max if schedule.steps is None else schedule.steps
    decode, at_load = _Decoder(pipeline), GraphAtLoad(pipeline)
    together = rows + at_load.extra
    threads = options.threads or usable_cpus()

    def batches(first: Any, last: Any) -> tf.data.Dataset:
        read = _records(pipeline, first, last).map(decode, num_parallel_calls=threads, deterministic=True)
        ragged = pipeline.outputs.ragged
        fixed = (schedule.remainder != "keep" and schedule.epochs is None) or schedule.remainder == "drop"
        join = read.ragged_batch if ragged else read.batch
        return at_load.batch(join(together, drop_remainder=fixed))

    if schedule.remainder != "keep" or schedule.epochs is not None:
        return batches(options.start_step, stop)
    per_epoch = schedule.steps_per_epoch
    epochs = tf.data.Dataset.range(options.start_step // per_epoch, np.iinfo(np.int64).max // per_epoch)
    return epochs.flat_map(
        lambda epoch: batches(tf.maximum(epoch * per_epoch, options.start_step), (epoch + 1) * per_epoch)
    )


def not_in_graph(pipeline: Pipeline) -> list[str]:
    """The options asked for that TensorFlow ops alone cannot do."""
    options = pipeline.options
    wrong = {
        "geometry": bool(options.geometry),
        "on_bad='skip'": options.on_bad == "skip",
        "verify='never'": options.verify == "never",
        "cache": options.cache not in ("auto", False),
    }
    if _local(pipeline)[1] == 0:
        wrong["an empty last batch of this host (use remainder='drop', or fewer hosts)"] = True
    return [name for name, value in wrong.items() if value]


def _check(pipeline: Pipeline) -> None:
    asked = not_in_graph(pipeline)
    if asked:
        raise LoaderError(f"path='graph' is TensorFlow ops alone and cannot do {', '.join(asked)}; use path='direct'")


def _local(pipeline: Pipeline) -> tuple[int, int]:
    """Samples of this host in a full batch, and in the smallest."""
    schedule = pipeline.schedule
    sizes = [schedule.span(step) for step in (0, schedule.steps_per_epoch - 1)]
    return sizes[0][1] - sizes[0][0], min(stop - start for start, stop in sizes)


# --- reading ------------------------------------------------------------------------------------------------------------


def _records(pipeline: Pipeline, first: Any, last: Any) -> tf.data.Dataset:
    """(payload, row, variant, place) of every sample of the steps [first, last), in order."""
    order = pipeline.schedule.order
    together = -(-order.block * order.window // pipeline.schedule.batch_size) if order.name == "block" else 1
    chunks = tf.data.Dataset.range(first, last, together).map(lambda step: _places(pipeline, step, together, last))
    files = _Files(pipeline.table)

    def read(place: Any) -> tf.data.Dataset:
        row, variant = at(pipeline.schedule, place)
        payloads = files.payloads(record(pipeline.table, row, variant))
        return payloads.map(lambda payload: (payload, row, variant, place))

    return chunks.interleave(read, cycle_length=CHUNKS, num_parallel_calls=CHUNKS, deterministic=True).unbatch()


def _places(pipeline: Pipeline, step: Any, count: int, last: Any) -> Any:
    """This host's places of `count` steps, as far as `last`, and what is read beside them: int64 [N]."""
    start, stop = _global_span(pipeline, tf.range(step, tf.minimum(step + count, last)))
    index, hosts = pipeline.schedule.hosts.index, pipeline.schedule.hosts.count
    own = tf.ragged.range(start + (stop - start) * index // hosts, start + (stop - start) * (index + 1) // hosts)
    return GraphAtLoad(pipeline).with_partners(own, start, stop).values


def _global_span(pipeline: Pipeline, step: Any) -> tuple[Any, Any]:
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
    """The table's records as tensors: payloads by number."""

    def __init__(self, table: Table) -> None:
        places = table.places
        self._paths = tf.constant([str(path) for path in table.files])
        self._file, self._offset, self._size = (tf.constant(c) for c in (places.file, places.offset, places.size))

    def payloads(self, records: Any) -> tf.data.Dataset:
        """One element: the payloads of these records, string [N]; sorted, read in runs of neighbours, put back into order."""
        order = tf.argsort(records, stable=True)
        wanted = tf.gather(records, order)
        held = tf.gather(self._file, wanted)
        begins = tf.concat([[True], (wanted[1:] != wanted[:-1] + 1) | (held[1:] != held[:-1])], 0)
        first = tf.where(begins)[:, 0]
        ends = tf.concat([first[1:], tf.size(wanted, tf.int64)[None]], 0)
        begin, last = tf.gather(wanted, first), tf.gather(wanted, ends - 1)
        start = tf.gather(self._offset, begin)
        nbytes = tf.gather(self._offset, last) + tf.gather(self._size, last) - start
        paths = tf.gather(self._paths, tf.gather(held, first))
        runs = tf.data.Dataset.from_tensor_slices((paths, start, nbytes, ends - first))
        read = runs.interleave(_run, cycle_length=READS, num_parallel_calls=READS, deterministic=True).unbatch()
        back = tf.argsort(order, stable=True)
        return read.batch(tf.size(wanted, tf.int64)).map(lambda payloads: tf.gather(payloads, back))


def _run(path: Any, offset: Any, nbytes: Any, count: Any) -> tf.data.Dataset:
    """`count` payloads from `offset` on, as one element."""
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
    """(payload, row, variant, place) to one element, as the outputs ask, or to what `GraphAtLoad.one` makes of it."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline, self._at_load = pipeline, GraphAtLoad(pipeline)
        self._specs, self._codecs = pipeline.specs, pipeline.dataset.codecs
        self._fields = [name for name in pipeline.outputs.fields if name in pipeline.specs]
        self._features = {
            feature: kind
            for name in self._fields
            for feature, kind in self._codecs[name].tf_features(name, self._specs[name]).items()
        }
        wants_key = any(name == "key" for name in pipeline.outputs.fields if name not in pipeline.specs)
        self._keys = tf.constant(pipeline.table.column("key").to_pylist()) if wants_key else None

    def __call__(self, payload: Any, row: Any, variant: Any, place: Any) -> Any:
        features = tf.io.parse_single_example(payload, self._features) if self._features else {}
        values = {name: self._codecs[name].tf_decode(features, name, self._specs[name]) for name in self._fields}
        if self._keys is not None:
            values["key"] = tf.gather(self._keys, row)
        values.setdefault("variant", variant)
        made = {output.name: self._output(output, values) for output in self._pipeline.read_outputs.outputs}
        return self._at_load.one(made, place)

    def _output(self, output: Output, values: Any) -> Any:
        if output.stacked:
            rasters = [values[name] for name in output.fields]
            flat = [raster[..., None] if len(raster.shape) == 2 else raster for raster in rasters]
            common = np.result_type(*(self._specs[name].dtype for name in output.fields))
            value = tf.concat([tf.cast(raster, common.name) for raster in flat], -1)
        else:
            value = values[output.fields[0]]
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

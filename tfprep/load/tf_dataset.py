"""A plain `tf.data` pipeline over the shards of a split, of public TensorFlow ops only.

shards -> interleaved records -> shuffle buffer -> parse and decode -> batch -> prefetch

It reads whatever TensorFlow has a file system for, such as `gs://`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from tfprep.checks import whole_number
from tfprep.codecs import Raw
from tfprep.dataset import Dataset, SplitInfo
from tfprep.errors import LoaderError
from tfprep.load.budget import budget_bytes
from tfprep.load.options import LoaderOptions, ShuffleBuffer
from tfprep.load.outputs import EXTRA, Output, Outputs
from tfprep.load.plan import plan_loader
from tfprep.load.reader.table import SplitRows
from tfprep.load.selection import is_training
from tfprep.storage.urls import scheme_of

TAKEN = (
    "training", "seed", "fields", "inputs", "targets", "sample_weight", "variants", "remainder", "memory_budget",
)  # fmt: skip
"""The options that `tf_dataset` takes."""
READS, BLOCK = 16, 16
"""Shards that are read at the same time, and records that are taken from each in turn."""
LEAST_BUFFER = 1_000
"""Records of a shuffle buffer, or a tenth of the samples where that is more: an epoch begins when the buffer is full."""
READ_BYTES = 4 << 20
"""Bytes of a shard that are read at a time."""
BUFFER_SHARE = 0.5
"""The share of the memory budget that the shuffle buffer takes: of encoded records, before they are decoded."""


def plain_dataset(source: SplitRows, options: LoaderOptions, shuffle_buffer: ShuffleBuffer) -> tf.data.Dataset:
    """The dataset of `Data.tf_dataset`.

    Raises:
        LoaderError: An option is not allowed here, TensorFlow does not read such URLs, there is no such field, or a field is
            nothing that TensorFlow's ops can parse.
        DatasetError: A shard is missing or has another size.
    """
    if not (shuffle_buffer is None or (isinstance(shuffle_buffer, str) and shuffle_buffer == "auto")):
        whole_number("shuffle_buffer, if it is not 'auto' or None,", shuffle_buffer, 1)
    if options.variants == "rotate":
        raise LoaderError("tf_dataset() takes variants='random', 'all' or a number; loader() takes more")
    data, split = source.dataset, source.split
    scheme = scheme_of(data.shards_folder)
    if scheme and scheme not in tf.io.gfile.get_registered_schemes():
        raise LoaderError(f"TensorFlow does not read {scheme}://; loader() does, through obstore")
    if data.manifest.imported is not None and data.manifest.rejected:
        raise LoaderError(
            f"{data.manifest.rejected} records that the index leaves out are in the shards, which tf_dataset() reads whole; use "
            "loader()"
        )
    if options.variants is None and (is_training([source]) if options.training is None else options.training):
        options = replace(options, variants="random")
    plan = plan_loader([source], options)
    options, outputs, used = plan.options, plan.outputs, plan.sources[0].read
    places = [table.parts[0].dataset for table in plan.tables.values()]
    for place in places:
        place.check_files(split, used)
    records = _records(places, split, used, options, each_once=options.variants != "all")
    if options.training and (buffer := _buffer(source.info, shuffle_buffer, options)) > 1:
        records = records.shuffle(buffer, seed=options.seed, reshuffle_each_iteration=True)
    drop = plan.schedule.remainder == "drop"
    # A call of TensorFlow's parser for each batch, and not for each record, where all codecs decode a batch at once.
    read = [(data.codecs.get(name), data.fields.get(name)) for name in outputs.fields if name not in EXTRA]
    many = all(codec and codec.tf_batches and spec and None not in spec.shape for codec, spec in read)
    elements = records.batch(options.batch_size, drop_remainder=drop) if many else records
    parse = tf.autograph.experimental.do_not_convert(_parser(data, places, outputs, many=many))
    elements = elements.map(parse, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    if not many:
        join = elements.ragged_batch if outputs.ragged else elements.batch
        elements = join(options.batch_size, drop_remainder=drop)
    batches = elements.prefetch(tf.data.AUTOTUNE)
    batches.tfprep_data = data  # holds the version as long as something reads it
    return batches


def _buffer(info: SplitInfo, shuffle_buffer: ShuffleBuffer, options: LoaderOptions) -> int:
    if shuffle_buffer != "auto":
        return int(shuffle_buffer or 0)
    files = [file for files in info.files for file in files]
    record_bytes = sum(file.bytes for file in files) / max(sum(file.records for file in files), 1)
    fits = budget_bytes(options.memory_budget) * BUFFER_SHARE / max(record_bytes, 1)
    wanted = min(info.samples * info.variants, max(LEAST_BUFFER, info.samples // 10))
    return int(min(wanted, max(fits, options.batch_size)))


def _records(
    places: Sequence[Dataset], split: str, used: tuple[int, ...], options: LoaderOptions, *, each_once: bool
) -> tf.data.Dataset:
    """The records of the shards, a tuple with that of each place: of `used` variants all, or with `each_once` in each iteration
    one of each shard, drawn in each iteration."""
    info = places[0].split(split)
    paths = tf.constant(
        [
            [
                [str(data.shard_path(data.file(split, variant, shard))) for data in places]
                for shard in range(info.shards)
            ]
            for variant in used
        ]
    )
    files = tf.data.Dataset.from_tensor_slices(tf.reshape(paths, (-1, len(places))))
    if each_once:
        draws = tf.data.Dataset.random(options.seed, rerandomize_each_iteration=True)
        shards = tf.data.Dataset.range(info.shards)
        files = tf.data.Dataset.zip((shards, draws)).map(lambda shard, draw: paths[draw % len(used), shard])
    if options.training:
        files = files.shuffle(max(info.shards * len(used), 1), seed=options.seed, reshuffle_each_iteration=True)

    def read(files: Any) -> tf.data.Dataset:
        shards = tf.unstack(files, len(places))
        return tf.data.Dataset.zip(tuple(tf.data.TFRecordDataset(file, buffer_size=READ_BYTES) for file in shards))

    return files.interleave(
        read,
        cycle_length=max(min(READS, info.shards), 1) if options.training else 1,  # evaluation is in the order on disk
        block_length=BLOCK,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )


def _parser(data: Dataset, places: Sequence[Dataset], outputs: Outputs, *, many: bool) -> Any:
    """A function from the bytes of an Example in each place to an element, or with `many` from those of a batch to a batch."""
    for name in outputs.fields:
        if name not in data.fields and name in EXTRA:
            raise LoaderError(f"{name!r} is in the index, which tf_dataset() does not read; use loader()")
        if data.manifest.imported is not None and isinstance(data.codecs[name], Raw):
            raise LoaderError(f"{name!r} holds bytes whose shape is declared by hand; use loader()")

    def reader(place: Dataset) -> Callable[[Any], dict[str, Any]]:
        names = {name: place.feature(name) for name in outputs.fields if name in place.manifest.fields}
        codecs, specs = place.codecs, place.fields
        features = {
            f: kind for name, own in names.items() for f, kind in codecs[name].tf_features(own, specs[name]).items()
        }

        def parsed(record: Any) -> dict[str, Any]:
            example = tf.io.parse_example if many else tf.io.parse_single_example
            values = example(record, features) if features else {}
            return {name: codecs[name].tf_decode(values, own, specs[name]) for name, own in names.items()}

        return parsed

    readers = [reader(place) for place in places]

    def parse(*records: Any) -> Any:
        values: dict[str, Any] = {}
        for record, parsed in zip(records, readers, strict=True):
            values |= parsed(record)
        return outputs.pack({output.name: _joined(output, values, data) for output in outputs.outputs})

    return parse


def _joined(output: Output, values: dict[str, Any], data: Dataset) -> Any:
    """A field, or rasters stacked along the channels in their common dtype."""
    if not output.stacked:
        return values[output.fields[0]]
    dtype = np.result_type(*(data.fields[name].dtype for name in output.fields)).name
    rasters = [(tf.cast(values[name], dtype), len(data.fields[name].shape)) for name in output.fields]
    return tf.concat([raster[..., None] if rank == 2 else raster for raster, rank in rasters], -1)

"""Batches of a loader, whether two lists of them are the same, and bytes of a shard that are damaged."""

import itertools
import uuid
from collections.abc import Mapping
from contextlib import closing

import numpy as np

from tfprep import augment
from tfprep.storage.store import open_store


def batches(data, count, split="train", kind="numpy_loader", **options):
    """The first batches: of any number of epochs in training, of one in evaluation."""
    with closing(getattr(data, kind)(split, **{"batch_size": 8, "seed": 3, **options})) as loader:
        return list(itertools.islice(loader.repeat() if loader.report()["training"] else loader, count))


def check_same(expected, given, name=""):
    """Compare lists of batches with their dtypes: arrays, or tensors of TensorFlow, in any structure."""
    if isinstance(expected, Mapping):
        assert expected.keys() == given.keys()
        for key, value in expected.items():
            check_same(value, given[key], f"{name}/{key}")
    elif isinstance(expected, list | tuple):
        assert isinstance(given, type(expected))
        assert len(expected) == len(given)
        for number, (one, other) in enumerate(zip(expected, given, strict=True)):
            check_same(one, other, f"{name}/{number}")
    else:
        one, other = np.asarray(expected), np.asarray(given)
        if one.dtype == object:  # text, which is bytes in TensorFlow
            other = np.array([text.decode() if isinstance(text, bytes) else text for text in other.tolist()], object)
        assert (one.dtype, one.shape) == (other.dtype, other.shape), name
        assert np.array_equal(one, other), name


READERS = ({"threads": 3}, {"workers": "processes", "threads": 2}, {"verify": "always"})


def check_every_way(data, count, *, starts, hosts=3, **options):
    """Compare the batches of one thread, which are returned, with those of `READERS`, of resumes, and of the hosts together."""
    whole = batches(data, count, **options, threads=1)
    for reader in READERS:
        check_same(whole, batches(data, count, **options, **reader))
    for start, reader in zip(starts, itertools.cycle(READERS), strict=False):
        check_same(whole[start:], batches(data, count - start, **options, **reader, start_step=start))
    parts = [batches(data, count, **options, hosts=(index, hosts)) for index in range(hosts)]
    if hosts > 1:
        check_same(whole, [joined(step) for step in zip(*parts, strict=True)])
    return whole


def joined(parts):
    """One batch of these: those of all hosts in a step, or of several steps."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def keys(batches):
    """The keys of each batch, of any loader."""
    found = [batch["key"] if isinstance(batch["key"], list) else np.asarray(batch["key"]).tolist() for batch in batches]
    return [[key.decode() if isinstance(key, bytes) else key for key in each] for each in found]


def flat(lists):
    return list(itertools.chain.from_iterable(lists))


def overwrite(path, offset, content):
    """Writes bytes into a file that stays the same file otherwise."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


def copy_in_memory(made):
    """Copies a dataset to a store in memory; returns its URL."""
    url = f"memory://{uuid.uuid4().hex}"
    store = open_store(url)
    for path in made.path.iterdir():
        store.write(path.name, path)
    return url


def stages(ops):
    """A list of ops as options of a loader: those that move pixels, those that change color, and those that mix samples. Options
    stay as they are."""
    if isinstance(ops, Mapping):
        return ops
    mix = [op for op in ops if isinstance(op, augment.MixUp | augment.CutMix)]
    geometry = [op for op in ops if hasattr(op, "effects")]
    return {"geometry": geometry, "color": [op for op in ops if op not in mix and op not in geometry], "mix": mix}


def view(count, ops):
    """The value of the option `views` for `count` views under these ops."""
    return count, {name: value for name, value in stages(ops).items() if value}

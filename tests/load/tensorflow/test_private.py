"""TensorFlow's private names: their behavior, the public alternatives, and that one module contains all of them."""

import importlib
import mmap
import re
from pathlib import Path

import numpy as np
import pytest

from tests.load.batches import batches, check_same

tf = pytest.importorskip("tensorflow")

from tfprep.load.tensorflow import private  # noqa: E402 - it imports TensorFlow

ROOT = Path(__file__).parents[3]
PRIVATE = re.compile(
    r"tensorflow\.(python|tsl|core)\b|tf\.__internal__|__class__ = |\bEagerTensor\b|_MapDataset\b|_py_funcs"
    r"|\b_(iterator_resource|variant_tensor|registry|inputs|type_spec|context_handle|next_internal|serialize_to_tensors"
    r"|restore_from_tensors|weak_outer_graph)\b|\b(tf|tensorflow)(\.\w+)*\._[a-z]"
)
DTYPES = ["uint8", "int64", "uint16", "float16", "float32", "float64", "bool", "bfloat16"]


def test_one_module_contains_all_private_names():
    sources = [
        *(ROOT / "tfprep").rglob("*.py"),
        *(ROOT / "benchmarks").rglob("*.py"),
        *(ROOT / "pipelines").rglob("*.py"),
    ]
    uses = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sources
        if path != Path(private.__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if PRIVATE.search(line)
    ]
    assert not uses, "\n".join(uses)
    assert len(sources) > 100
    assert len(PRIVATE.findall(Path(private.__file__).read_text())) > 10


def array_of(dtype, shape=(4, 5, 3), offset=0):
    """An array in a page of memory, `offset` bytes from its start."""
    size = int(np.prod(shape)) * tf.dtypes.as_dtype(dtype).size
    flat = np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), np.uint8)[offset : offset + size]
    flat[:] = np.random.default_rng(0).integers(0, 2, size)  # 0 and 1 are valid booleans as well.
    return flat.view(tf.dtypes.as_dtype(dtype).as_numpy_dtype).reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_over_an_array(dtype):
    array = array_of(dtype)
    tensor = private.tensor_maker()(array)
    assert (tensor.dtype.name, tensor.shape, tensor.device) == (dtype, array.shape, tf.identity(tensor).device)
    assert tensor.numpy().tobytes() == array.tobytes()
    array[...] = 1 - array  # The tensor shows the change, since it is no copy.
    assert tensor.numpy().tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "array", [np.array([b"a", "\u00fc".encode()], object), np.zeros((0, 4), np.float32)], ids=["text", "empty"]
)
def test_arrays_that_have_no_memory_to_share(array):
    tensor = private.tensor_maker()(array)
    assert tensor.shape == array.shape
    assert tensor.numpy().tolist() == array.tolist()


def test_memory_that_is_not_aligned_is_copied():
    """TensorFlow's kernels may read it with instructions that fail at such addresses."""
    array = array_of("float32", offset=4)
    tensor = private.tensor_maker()(array)
    assert tensor.numpy().tolist() == array.tolist()
    assert np.asarray(memoryview(tensor)).ctypes.data % 64 == 0


def following(iterator):
    return next(iterator)


def test_a_loader_has_the_options_of_its_dataset(data):
    loader = data.loader("train", 8)
    assert loader.options().autotune.enabled is False
    off = tf.data.experimental.AutoShardPolicy.OFF
    assert loader.options().experimental_distribute.auto_shard_policy == off


@pytest.mark.parametrize("replacement", [None, lambda array, device, dtype: tf.constant(array)])  # A copy.
def test_names_that_are_missing_or_behave_otherwise(monkeypatch, replacement):
    ops = importlib.import_module("tensorflow.python.framework.ops")
    if replacement is None:
        monkeypatch.delattr(ops, "EagerTensor")
    else:
        monkeypatch.setattr(ops, "EagerTensor", replacement)
    private._eager_tensor.cache_clear()
    try:
        assert private.tensor_maker() is tf.constant
    finally:
        private._eager_tensor.cache_clear()


def test_iterators_that_know_their_handle_by_another_name(monkeypatch, data):
    """Then the class is not changed, and nothing is delivered twice."""
    kind = type(iter(tf.data.Dataset.range(1)))
    monkeypatch.setattr(
        kind, "_iterator_resource", property(lambda self: self._handle, lambda self, it: setattr(self, "_handle", it)),
        raising=False,
    )  # fmt: skip
    private._iterators_can_change.cache_clear()
    try:
        iterator = iter(data.loader("train", 8, seed=3, fields=["label"]))
        assert type(iterator) is kind
    finally:
        private._iterators_can_change.cache_clear()
    check_same(batches(data, 2, fields=["label"]), [next(iterator), tf.function(following)(iterator)])

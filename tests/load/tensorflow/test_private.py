"""Private names of TensorFlow and Keras are not used but for those that a module docstring gives the reason for: three attributes
in train/monitor/samples.py."""

import re
from pathlib import Path

import pytest

tf = pytest.importorskip("tensorflow")

ROOT = Path(__file__).parents[3]
PRIVATE = re.compile(
    r"\bkeras\.src\b|tensorflow\.(python|tsl|core)\b|tf\.__internal__|__class__ = |\bEagerTensor\b|_MapDataset\b|_py_funcs"
    r"|\b_(iterator_resource|variant_tensor|registry|type_spec|context_handle|next_internal|serialize_to_tensors"
    r"|restore_from_tensors|weak_outer_graph)\b|\b(tf|tensorflow)(\.\w+)*\._[a-z]"
)


def test_no_module_uses_private_names():
    folders = ("tfprep", "benchmarks", "pipelines")
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    uses = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sources
        if path.parent.name != "peers"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if PRIVATE.search(line)
    ]
    assert not uses, "\n".join(uses)
    assert len(sources) > 60


def test_a_loader_has_the_options_of_its_dataset(data):
    loader = data.loader("train", 8)
    assert loader.options().autotune.enabled is False
    off = tf.data.experimental.AutoShardPolicy.OFF
    assert loader.options().experimental_distribute.auto_shard_policy == off

"""The loader for PyTorch delivers the same batches, split among workers and ranks."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from itertools import islice

import numpy as np
import pytest

import tfprep
from tfprep.errors import LoaderError
from tfprep.load.at_load.ops import CutMix, MixUp, RandomCrop, RandomFlip

torch = pytest.importorskip("torch")
torch_loader = pytest.importorskip("tfprep.load.torch_loader")


@pytest.fixture
def data(photos):
    return tfprep.open(photos.path)


def same(tensors, arrays):
    assert tensors.keys() == arrays.keys()
    for name, array in arrays.items():
        if array.dtype == object:
            assert tensors[name] == array.tolist()
        else:
            assert np.array_equal(tensors[name].numpy(), array)


@pytest.mark.parametrize("options", [{}, {"training": False}, {"hosts": (1, 2)}, {"start_step": 12}])
def test_the_batches_of_the_numpy_loader(data, options):
    loader = data.torch_loader("train", 8, seed=3, **options)
    assert isinstance(loader, torch.utils.data.IterableDataset)
    for tensors, arrays in zip(loader, data.numpy_loader("train", 8, seed=3, **options), strict=False):
        same(tensors, arrays)
        if loader.stats["batches"] >= 10:
            break


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_workers_split_the_steps_and_keep_the_order(data, workers):
    fields = ["key", "image", "label"]
    loader = data.torch_loader("val", 3, training=False, fields=fields)
    batches = list(torch.utils.data.DataLoader(loader, batch_size=None, num_workers=workers))
    expected = list(data.numpy_loader("val", 3, training=False, fields=fields))
    assert len(batches) == len(expected) == len(loader) == 4
    for tensors, arrays in zip(batches, expected, strict=True):
        same(tensors, arrays)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_each_pass_of_a_data_loader_is_the_next_epoch(data, workers, persistent):
    loader = data.torch_loader("train", 8, seed=3, fields=["key"])
    batches = torch.utils.data.DataLoader(
        loader, batch_size=None, num_workers=workers, persistent_workers=persistent and workers > 0
    )
    expected = data.numpy_loader("train", 8, seed=3, fields=["key"])
    assert len(batches) == len(loader) == len(expected) == 6
    for _ in range(3):
        assert [batch["key"] for batch in batches] == [batch["key"].tolist() for batch in expected]


def test_a_stream_with_workers_has_no_end(data):
    loader = data.torch_loader("train", 8, seed=3, start_step=4, fields=["key"]).repeat()
    batches = iter(torch.utils.data.DataLoader(loader, batch_size=None, num_workers=2))
    expected = iter(data.numpy_loader("train", 8, seed=3, start_step=4, fields=["key"]).repeat())
    for _ in range(20):
        assert next(batches)["key"] == next(expected)["key"].tolist()
    with pytest.raises(TypeError, match="no end"):
        len(loader)


def test_bfloat16(data):
    options = {"inputs": "image", "dtype": "bfloat16", "training": False}
    tensor = next(iter(data.torch_loader("val", 4, **options)))
    assert tensor.dtype == torch.bfloat16
    exact = next(iter(data.numpy_loader("val", 4, **options)))
    assert np.array_equal(tensor.float().numpy(), exact.astype(np.float32))


def test_state_is_shared_with_the_other_loaders(data):
    loader = data.torch_loader("train", 8, seed=3)
    assert data.numpy_loader("train", 8, seed=3).step_of(loader.state_at(7)) == 7
    assert pickle.loads(pickle.dumps(loader)).step_of(loader.state_at(7)) == 7
    assert loader.steps_per_epoch == 50 // 8


def test_ranks(data, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    keys = next(iter(data.torch_loader("train", 8, seed=3, fields=["key"])))["key"]
    whole = next(iter(data.numpy_loader("train", 8, seed=3, fields=["key"])))["key"]
    assert keys == whole[2:4].tolist()


AT_LOAD = {
    "inputs": ["image", "lossless"],
    "targets": {"label": "label", "depth": "depth"},
    "at_load": [RandomFlip(), RandomCrop(20, 24), MixUp(0.4), CutMix()],
}


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3")  # More than the CPUs of a small machine.
@pytest.mark.parametrize("workers", [0, 2, 3])
@pytest.mark.parametrize("rank", [None, 0, 1])
def test_at_load_with_workers_and_ranks(data, monkeypatch, workers, rank):
    """Partners of MixUp and CutMix may belong to another rank; workers take the steps in turn."""
    options = {"seed": 5, "start_step": 3, **AT_LOAD}
    if rank is not None:
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    loader = data.torch_loader("train", 8, **options)
    batches = torch.utils.data.DataLoader(loader, batch_size=None, num_workers=workers)
    expected = data.numpy_loader("train", 8, **options)  # The batch of one host.
    part = slice(0, 8) if rank is None else slice(4 * rank, 4 * rank + 4)
    for (x, y), (whole, targets) in islice(zip(batches, expected, strict=False), 9):
        assert x.shape[1:] == (20, 24, 6)
        assert np.array_equal(x.numpy(), whole[part])
        assert y.keys() == targets.keys()
        for name, value in targets.items():
            assert np.array_equal(y[name].numpy(), value[part]), name
    assert targets["label"].shape == (8, 3)


RANK = """
import json, sys
import torch
import tfprep
from tfprep.load.at_load.ops import MixUp

folder, meeting, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.distributed.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=2)
options = {"inputs": {"key": "key", "clicks": "clicks"}, "targets": "label", "at_load": [MixUp(0.4)], "seed": 2}
loader = tfprep.open(folder).torch_loader("train", 6, **options)
batches = iter(torch.utils.data.DataLoader(loader, batch_size=None, num_workers=2))
seen = []
for _ in range(4):
    x, y = next(batches)
    seen.append([x["key"], x["clicks"].long().sum((1, 2, 3)).tolist(), y.tolist()])
print(json.dumps(seen))
torch.distributed.destroy_process_group()
"""


def test_two_ranks_of_a_real_process_group(photos, tmp_path):
    command = [sys.executable, "-c", RANK, str(photos.path), str(tmp_path / "meeting")]
    ranks = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(2)]
    lines = [json.loads(rank.communicate(timeout=120)[0].splitlines()[-1]) for rank in ranks]
    options = {"inputs": {"key": "key", "clicks": "clicks"}, "targets": "label", "at_load": [MixUp(0.4)], "seed": 2}
    whole = tfprep.open(photos.path).numpy_loader("train", 6, **options)
    for (x, y), first, second in zip(whole, *lines, strict=False):
        assert first[0] + second[0] == x["key"].tolist()
        assert first[1] + second[1] == x["clicks"].sum((1, 2, 3), dtype=np.int64).tolist()
        assert np.allclose(first[2] + second[2], y, rtol=0, atol=1e-7)


def test_workers_share_cpus_and_memory(data):
    loader = data.torch_loader("train", 8, memory_budget="300MB", threads=0)
    shared = torch_loader._share(loader.pipeline, 3)
    assert shared.memory_budget == 100 << 20
    assert shared.threads >= 1
    assert torch_loader._share(data.torch_loader("train", 8, threads=5).pipeline, 3).threads == 5


def test_an_error_of_a_worker_reaches_the_trainer(data):
    batch = 8 * (24 * 32 * 3 + 64)
    loader = data.torch_loader("train", 8, inputs="image", targets="label", memory_budget=6 * batch)
    with pytest.raises(LoaderError, match="memory_budget"):
        next(iter(torch.utils.data.DataLoader(loader, batch_size=None, num_workers=2)))


def test_without_workers_no_folder_for_temporary_files_is_needed(data, monkeypatch):
    def none_is_writable():
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", none_is_writable)
    loader = data.torch_loader("val", 4, fields=["label"])
    assert len(list(loader)) == len(list(torch.utils.data.DataLoader(loader, batch_size=None))) == 3
    assert loader.next_step == 0

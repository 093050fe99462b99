"""The loader for PyTorch: the same batches, split among workers and ranks."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import tfprep

torch = pytest.importorskip("torch")


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


def test_training_with_workers_goes_on_for_ever(data):
    loader = data.torch_loader("train", 8, seed=3, start_step=4, fields=["key"])
    batches = iter(torch.utils.data.DataLoader(loader, batch_size=None, num_workers=2))
    expected = iter(data.numpy_loader("train", 8, seed=3, start_step=4, fields=["key"]))
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
    assert loader.steps_per_epoch == 7


def test_ranks(data, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    keys = next(iter(data.torch_loader("train", 8, seed=3, fields=["key"])))["key"]
    whole = next(iter(data.numpy_loader("train", 8, seed=3, fields=["key"])))["key"]
    assert keys == whole[2:4].tolist()

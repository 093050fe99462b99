"""The loader for PyTorch delivers the same batches, split among workers and ranks."""

import json
import pickle
import subprocess
import sys
from itertools import islice

import numpy as np
import pytest

import tfprep
from tests.load.batches import batches, check_same, keys, stages
from tfprep import augment, codecs
from tfprep.errors import LoaderError

torch = pytest.importorskip("torch")


AT_LOAD = {
    "inputs": ["image", "lossless"],
    "targets": {"label": "label", "depth": "depth"},
    **stages([augment.Flip(), augment.Crop(20, 24), augment.MixUp(0.4), augment.CutMix()]),
}


@pytest.mark.parametrize(
    "options",
    [{}, {"training": False}, {"hosts": (1, 2)}, {"start_step": 12}, AT_LOAD, {"fields": ["key", "image", "label"]}],
)
def test_the_batches_of_the_numpy_loader(data, options):
    """Also through a data loader around it, whose passes are the next epochs."""
    loader = data.torch_loader("train", 8, seed=3, **options)
    assert isinstance(loader, torch.utils.data.IterableDataset)
    assert loader.steps_per_epoch == len(data.numpy_loader("train", 8, seed=3, **options))
    expected = batches(data, 10, **options)
    check_same(expected, list(islice(loader.repeat() if options.get("training", True) else loader, 10)))
    around = torch.utils.data.DataLoader(data.torch_loader("train", 8, seed=3, **options), batch_size=None)
    passes = data.numpy_loader("train", 8, seed=3, **options)
    assert len(around) == len(passes)
    for _ in range(2):
        check_same(list(passes), [tuple(batch) if isinstance(batch, list) else batch for batch in around])


def test_workers_of_a_data_loader_are_refused_with_the_way_out(data):
    loader = data.torch_loader("val", 3, training=False, fields=["key"])
    with pytest.raises(LoaderError, match=r"num_workers=0.*random_access"):
        next(iter(torch.utils.data.DataLoader(loader, batch_size=None, num_workers=2)))


def test_bfloat16(make_dataset):
    """NumPy's arrays of it are of a type that PyTorch does not know."""
    values = np.arange(6, dtype=pytest.importorskip("ml_dtypes").bfloat16).reshape(2, 3) / 7
    made = make_dataset(
        samples={"val": 2}, fields=("map",), make=lambda rng, number: {"map": values * number}, kinds={"map": "map"},
        codec={"map": codecs.Raw()},
    )  # fmt: skip
    (batch,) = batches(tfprep.open(made.path), 1, "val", "torch_loader")
    assert batch["map"].dtype == torch.bfloat16
    assert np.array_equal(batch["map"].float().numpy(), np.stack([values * 0, values]).astype(np.float32))


def test_state_is_shared_with_the_other_loaders(data):
    loader = data.torch_loader("train", 8, seed=3)
    for other in (data.numpy_loader("train", 8, seed=3), pickle.loads(pickle.dumps(loader))):
        other.load_state_dict(loader.state_dict(step=7))
        assert other.next_step == 7


RANK = """
import json, sys
import torch
import tfprep
from tfprep import augment

folder, meeting, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.distributed.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=2)
options = {"inputs": {"key": "key", "clicks": "clicks"}, "targets": "label", "mix": [augment.MixUp(0.4)], "seed": 2}
loader = tfprep.open(folder).torch_loader("train", 6, **options)
batches = iter(torch.utils.data.DataLoader(loader, batch_size=None))
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
    lines = [json.loads(rank.communicate(timeout=600)[0].splitlines()[-1]) for rank in ranks]
    inputs = {"key": "key", "clicks": "clicks"}
    options = {"inputs": inputs, "targets": "label", "mix": [augment.MixUp(0.4)], "seed": 2}
    whole = tfprep.open(photos.path).numpy_loader("train", 6, **options)
    for (x, y), first, second in zip(whole, *lines, strict=False):
        assert first[0] + second[0] == x["key"].tolist()
        assert first[1] + second[1] == x["clicks"].sum((1, 2, 3), dtype=np.int64).tolist()
        assert np.allclose(first[2] + second[2], y, rtol=0, atol=1e-7)


FIELDS = ["key", "variant", "image", "label", "caption"]
ORDERED, BALANCED = {"order": "sequential"}, {"balance": "label", "variants": "random"}


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("workers", "method", "options"),
    [(0, None, BALANCED), (2, "fork", ORDERED), (2, "spawn", {})],
)
def test_a_batch_sampler_gives_the_order_of_the_loaders(data, workers, method, options):
    samples = data.random_access("train", variant="all", fields=FIELDS)
    loader = torch.utils.data.DataLoader(
        samples, batch_sampler=data.batch_sampler("train", 8, seed=3, **options), num_workers=workers,
        multiprocessing_context=method,
    )  # fmt: skip
    expected = data.numpy_loader("train", 8, seed=3, fields=FIELDS, **options)
    assert len(loader) == len(expected) == 6
    for _ in range(3):
        check_same(list(expected), list(loader))


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_batch_sampler_gives_each_rank_its_part(data, rank):
    samples = data.random_access("train", variant="all", fields=["key"])
    loader = torch.utils.data.DataLoader(samples, batch_sampler=data.batch_sampler("train", 8, hosts=(rank, 3)))
    whole = data.numpy_loader("train", 8, fields=["key"])
    part = slice(8 * rank // 3, 8 * (rank + 1) // 3)
    assert keys(loader) == [each[part] for each in keys(whole)]


@pytest.mark.filterwarnings(
    "ignore:.*fork.*:DeprecationWarning", "ignore:'set_vital' is deprecated"
)  # torchdata uses it
@pytest.mark.parametrize("around", ["the loader", "the sampler", "the sampler, with workers"])
@pytest.mark.parametrize(("taken", "whole"), [(5, False), (6, False), (6, True), (7, False)])
def test_a_stateful_data_loader_resumes_exactly(data, around, taken, whole):
    """`whole`: the state is taken after a pass has ended, and not with its last batch."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def make():
        if around == "the loader":
            return stateful.StatefulDataLoader(data.torch_loader("train", 8, fields=["key"]), batch_size=None)
        samples, batches = data.random_access("train", variant="all", fields=["key"]), data.batch_sampler("train", 8)
        workers = 2 if around == "the sampler, with workers" else 0
        return stateful.StatefulDataLoader(samples, batch_sampler=batches, num_workers=workers)

    expected = keys(data.numpy_loader("train", 8, fields=["key"]).repeat(3))
    first, seen = make(), []
    while taken - len(seen) >= (6 if whole else 7):
        seen += keys(first)
    if taken > len(seen) or not taken:
        seen += keys(islice(iter(first), taken - len(seen)))
    resumed = make()
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
    while len(seen) < 18:
        seen += keys(resumed)
    assert seen[:18] == expected

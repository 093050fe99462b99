"""The blocks of docs/loader.md that resume a run, with `keras_loader`: the run is killed, and started again."""

import os

import numpy as np
import pytest

from tests.killed_runs import BLOCKS, ROOT, final, run

keras = pytest.importorskip("keras")
BACKEND = keras.backend.backend()
pytestmark = pytest.mark.skipif(BACKEND == "tensorflow", reason="tests/docs/test_loader.py has these for TensorFlow")

STEPS = 6
"""Steps of an epoch: 50 samples in batches of 8."""


def _run(number, folder, dataset, killed_at):
    block = BLOCKS[number].replace("data.loader(", "data.keras_loader(")
    run(block, folder, dataset, killed_at, {**os.environ, "PYTHONPATH": str(ROOT)})


@pytest.fixture(scope="module")
def whole(photos, tmp_path_factory):
    """The weights of a run that was not killed."""
    folder = tmp_path_factory.mktemp("whole")
    _run(0, folder, photos.path.absolute(), 0)
    return final(folder)


@pytest.mark.parametrize("number", range(2))
def test_it_ends_with_the_weights_of_a_run_that_was_not_killed(number, whole, photos, tmp_path):
    """Ten epochs of six steps, killed in the fourth one, in step 22."""
    for killed_at in (22, 0):
        _run(number, tmp_path / "run", photos.path.absolute(), killed_at)
    ended = final(tmp_path / "run")
    assert int(whole["steps"]) == 10 * STEPS
    assert int(ended["steps"]) == 7 * STEPS
    for name in ended.keys() - {"steps"}:
        np.testing.assert_array_equal(ended[name], whole[name])

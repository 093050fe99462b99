"""Ops at load, sizes that grow, buckets and views on each backend: the pixels of `numpy_loader`, and one trace a size."""

import importlib.util
from itertools import islice

import numpy as np
import pytest

import tfprep
from tests.conftest import write_dataset
from tests.load.batches import stages, view
from tfprep import augment, codecs
from tfprep.load import Buckets

keras = pytest.importorskip("keras")
BACKEND = keras.backend.backend()
SHAPES = [(30, 60), (40, 40), (62, 30)]
GROWING = [augment.RandomResizedCrop(sizes={0: 8, 1: (12, 16), 2: 24})]
CASES = {
    "ops": {
        **stages(
            [
                augment.RandomResizedCrop(16, 24),
                augment.Flip(),
                augment.ColorJitter(),
                augment.Erasing(),
                augment.MixUp(0.4),
                augment.CutMix(),
            ]
        )
    },
    "growing": {**stages(GROWING), "one_hot": True},
    "buckets": {"bucket": Buckets([(16, 32), (24, 24), (32, 16)]), **stages([augment.Flip()]), "one_hot": True},
    "views": {
        "views": {
            "global": view(2, [augment.RandomResizedCrop(16, 16)]),
            "local": view(3, [augment.RandomResizedCrop(8, 8)]),
        },
        "one_hot": True,
    },
}
PACKAGES = {"keras_loader": "keras", "jax_loader": "jax", "torch_loader": "torch", "loader": "tensorflow"}
LOADERS = [
    kind
    for kind, package in PACKAGES.items()
    # JAX, once it is imported, warns of the processes that later tests fork.
    if importlib.util.find_spec(package) and (package != "jax" or BACKEND == "jax")
]


@pytest.fixture(scope="module")
def photos_of_three_sizes(tmp_path_factory):
    def make(rng, number):
        return {"image": rng.integers(0, 256, (*SHAPES[number % 3], 3)).astype(np.uint8), "label": number % 3}

    kinds, codec = {"image": "image", "label": "label"}, {"image": codecs.Jpeg(95), "label": codecs.Scalar()}
    folder = tmp_path_factory.mktemp("at_load") / "made"
    made = write_dataset(
        folder, samples={"train": 30, "val": 9}, fields=tuple(kinds), make=make, kinds=kinds, codec=codec
    )
    return tfprep.open(made.path)


def made(data, kind, split="train", **options):
    return getattr(data, kind)(split, 5, **{"seed": 3, "inputs": "image", "targets": "label", **options})


def arrays(element):
    """The arrays of an element, in the order of the names in it."""
    if isinstance(element, dict):
        return [array for name in sorted(element) for array in arrays(element[name])]
    if isinstance(element, list | tuple):
        return [array for part in element for array in arrays(part)]
    return [np.array(element)]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", LOADERS)
def test_every_loader_delivers_the_same_pixels_and_continues(photos_of_three_sizes, kind, case):
    """Over three epochs, then from a state in the middle of the second one, then in evaluation."""
    data, options = photos_of_three_sizes, CASES[case]
    whole = [arrays(batch) for batch in islice(made(data, "numpy_loader", **options).repeat(), 18)]
    given = [arrays(batch) for batch in islice(made(data, kind, **options).repeat(), 18)]
    np.testing.assert_equal(given, whole)
    stopped = made(data, kind, **options)
    taken = [arrays(batch) for _ in range(2) for batch in islice(stopped, 6)][:8]
    np.testing.assert_equal(taken, whole[:8])
    continued = made(data, kind, **options)
    continued.load_state_dict(stopped.state_dict(step=8))
    # tf.data was promised the length of an epoch; the other loaders end with the epoch.
    rest = 6 if hasattr(continued, "element_spec") else 4
    np.testing.assert_equal([arrays(batch) for batch in continued], whole[8 : 8 + rest])
    validation = [[arrays(b) for b in made(data, one, "val", **options)] for one in ("numpy_loader", kind)]
    np.testing.assert_equal(validation[1], validation[0])


class Pooled(keras.Model):  # type: ignore[misc]
    """Class scores of the mean color of an image, or of all views; `traces` are the shapes with which it was called."""

    def __init__(self):
        super().__init__()
        self.scores = keras.layers.Dense(3)
        self.traces = []

    def call(self, images):
        parts = keras.tree.flatten(images)
        self.traces.append([tuple(part.shape) for part in parts])
        return self.scores(sum(keras.ops.mean(keras.ops.cast(part, "float32"), (1, 2)) for part in parts))


def compiled():
    keras.utils.set_random_seed(0)
    model = Pooled()
    model.compile("sgd", keras.losses.CategoricalCrossentropy(from_logits=True))
    return model


@pytest.mark.parametrize(("case", "sizes"), [("ops", 1), ("growing", 3), ("buckets", 3), ("views", 1)])
def test_fit_trains_on_them_and_traces_once_a_size(photos_of_three_sizes, case, sizes):
    data, model, by_hand = photos_of_three_sizes, compiled(), compiled()
    val = made(data, "keras_loader", "val", **CASES[case])
    history = model.fit(
        made(data, "keras_loader", **CASES[case]), epochs=3, validation_data=val, shuffle=False, verbose=0
    ).history
    assert np.isfinite(history["val_loss"]).all()
    for images, labels in islice(made(data, "numpy_loader", **CASES[case]).repeat(), 18):
        by_hand.train_on_batch(images, labels)
    for one, other in zip(model.get_weights(), by_hand.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    if BACKEND != "torch":  # which traces nothing
        # Built; each size in training; in evaluation with two lengths of a batch.
        assert len(model.traces) <= 2 + sizes + 2 * sizes


@pytest.mark.skipif("jax_loader" not in LOADERS, reason="needs JAX as the backend of Keras")
@pytest.mark.parametrize(("case", "sizes"), [("growing", 3), ("buckets", 3), ("views", 1)])
def test_jit_traces_once_a_size(photos_of_three_sizes, case, sizes):
    import jax

    traces = []

    @jax.jit
    def step(images):
        traces.append(1)
        return jax.tree.map(lambda image: image.mean(), images)

    for images, _ in islice(made(photos_of_three_sizes, "jax_loader", **CASES[case]).repeat(), 18):
        step(images)
    assert len(traces) == sizes

"""The same ops and derived inputs ahead of training and at load: equal draws give equal bits; what cannot follow is refused."""

from contextlib import nullcontext
from functools import partial
from hashlib import blake2b

import numpy as np
import pytest

import tfprep
from tests.conftest import smooth, write_dataset
from tests.load.batches import batches, check_every_way, overwrite
from tests.photos import save
from tfprep import Recipe, augment, codecs, derive, sources
from tfprep.builder import BuildOptions, make_sample
from tfprep.errors import LoaderError, RecordError
from tfprep.fields import FieldSpec
from tfprep.load.order.samplers import generator_at
from tfprep.seeding import generator

KINDS = {
    "image": "image", "mask": "mask", "depth": "map", "boxes": "boxes", "names": "label", "points": "points",
    "weight": "scalar", "caption": "text",
}  # fmt: skip
CODEC = {
    "image": codecs.Raw(), "mask": codecs.Png(), "depth": codecs.Zstd(), "boxes": codecs.Scalar(), "names": codecs.Scalar(),
    "points": codecs.Scalar(), "weight": codecs.Scalar(), "caption": codecs.Text(),
}  # fmt: skip
RULES = {
    "border": "constant", "fill": {"image": 9, "mask": 5}, "min_visible": 0.4, "row_fields": {"boxes": ["names"]},
    "flip_indices": {"points": [0, 2, 1]},
}  # fmt: skip
SEED = 11
GEOMETRY = {
    "Resize": [augment.Resize(20, 28)],
    "Resize and CenterCrop": [augment.Resize(shorter=30), augment.CenterCrop(24, 24)],
    "letterbox": [augment.Resize(40, 40, pad=True)],
    "Crop": [augment.Crop(24, 30)],
    "Crop that pads": [augment.Crop(60, 40)],
    "Flip": [augment.Flip(), augment.Flip(0.5, "vertical")],
    "Crop and Flip": [augment.Crop(24, 30), augment.Flip()],
    "RandomResizedCrop": [augment.RandomResizedCrop(32, 40, (0.05, 1)), augment.Flip()],
    "Rotate": [augment.Rotate(25)],
    "Rotate90": [augment.Rotate90(), augment.Crop(20, 20)],
    "Scale": [augment.Scale((0.6, 1.6))],
    "Shear": [augment.Shear(15, 10)],
    "Translate": [augment.Translate(), augment.Translate(whole=False)],
    "Perspective": [augment.Perspective()],
    "Elastic": [augment.Elastic(30, 6)],
    "RandAugment": [augment.RandAugment(3, 15), augment.Crop(24, 24)],
    "TrivialAugment": [augment.TrivialAugment()],
    "policies": [
        augment.OneOf([augment.Rotate(20), augment.Shear(10)], weights=[1, 3]), augment.Maybe(augment.Flip(1), 0.5),
        augment.SomeOf([augment.Scale(), augment.Translate(), augment.RandAugment()], (0, 2), shuffle=True),
    ],
}  # fmt: skip
COLOR = [
    augment.AutoContrast(0.5), augment.Blur(), augment.Brightness(), augment.Clahe(),
    augment.ColorJitter(0.4, 0.4, 0.4, 0.1), augment.Contrast(), augment.Equalize(0.5), augment.Erasing(),
    augment.Gamma(), augment.Grayscale(0.5), augment.Hue(), augment.Invert(), augment.JpegArtifacts(),
    augment.Noise(), augment.Posterize(), augment.Saturation(), augment.Sharpness(), augment.Solarize(),
    augment.OneOf([augment.Invert(1), augment.Blur((1, 2))]), augment.SomeOf([augment.Gamma(), augment.Hue(), augment.Noise()]),
    augment.Maybe(augment.Grayscale(1)),
]  # fmt: skip
DERIVE = {
    "boundaries": derive.Boundaries(void=5), "edges": derive.Canny(),
    "clicks": derive.ClickPoints(target=2, void=5), "maps": derive.Clicks(target=2, sets=2, void=5),
    "redrawn": derive.ClickMaps(points="clicks"), "distance": derive.Distance(target=(1, 2), void=5),
    "heat": derive.Heatmaps(points="points", channels=3, dtype="uint8"), "found": derive.InstanceBoxes(void=5),
    "centers": derive.InstanceCenters(void=5), "majority": derive.InstanceClasses(classes="mask", void=5),
    "offsets": derive.InstanceOffsets(void=5), "onehot": derive.OneHot(5, ignore=5),
    "instance": derive.OneInstance("mask", void=5), "object": derive.OneObject(target=2, void=5),
    "own": derive.Own(lambda sample, draws: sample["mask"] + draws.random()),
    "signed": derive.SignedDistance(target=2, truncate_px=20, dtype="uint8", void=5), "sobel": derive.Sobel(of="both"),
    "weights": derive.UNetWeights(void=5),
}  # fmt: skip


def scene(rng, number):
    height, width = (48, 56) if number < 100 else (40 + number % 5 * 4, 50)
    corners = rng.uniform((0, 0), (width - 14, height - 14), (3, 2))
    return {
        "image": smooth(rng, height, width, 3),
        "mask": np.kron(rng.integers(0, 5, (height // 4, width // 4 + 1)), np.ones((4, 4)))[:, :width].astype(np.uint8),
        "depth": rng.random((height, width)).astype(np.float32),
        "boxes": np.concatenate([corners, corners + rng.uniform(3, 14, (3, 2))], 1).astype(np.float32),
        "names": np.arange(3) + number,
        "points": np.concatenate([corners + 1, np.ones((3, 1))], 1).astype(np.float32),
        "weight": np.float32(number / 7),
        "caption": f"é {number}",
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    options = {"fields": tuple(KINDS), "make": scene, "kinds": KINDS, "codec": CODEC}
    made = write_dataset(tmp_path_factory.mktemp("both") / "made", samples={"train": 12, "val": 4}, **options)
    made.seal(lambda document: document.update(recipe=RULES))
    return made


@pytest.fixture(scope="module")
def data(made):
    return tfprep.open(made.path)


def built(sample, draws, monkeypatch, variant=1, kinds=KINDS, **options):
    """What a build stores of a sample for these draws, read again: every field without loss."""
    kind_of = {**kinds, **{name: getattr(one, "kind", "map") for name, one in options.get("derive", {}).items()}}
    lossless = {"image": codecs.Zstd(), "mask": codecs.Zstd(), "map": codecs.Zstd(), "text": codecs.Text()}
    store = {name: lossless.get(kind, codecs.Scalar()) for name, kind in kind_of.items()}
    recipe = Recipe("r", sources.Folder(), store, **{**RULES, **options})
    monkeypatch.setattr(make_sample, "generator", lambda seed, key, variant, step: draws(step))
    maker = make_sample.SampleMaker(recipe, kinds, {})
    (values,) = maker.made("key", sample, [variant])
    features, specs = maker.encode(values, sample)
    monkeypatch.setattr(make_sample, "generator", generator)
    for name, codec in store.items():
        spec = FieldSpec(kind_of[name], specs[name].shape, specs[name].dtype)
        yield name, codec.decode(features[name], spec, np.shape(values[name]))


def check_equal(made, data, monkeypatch, count=24, split="train", kinds=KINDS, **options):
    """Compare the samples of a loader, field by field, with what a build stores for the same draws."""
    names = [*kinds, *options.get("derive", {})]
    training = split == "train"
    position = 0
    for batch in batches(
        data, -(-count // 4), split, batch_size=4, seed=SEED, fields=[*names, "key"], variants=0, **options
    ):
        for row, key in enumerate(batch["key"]):
            sample = made.values[split][0][int(str(key).rpartition("/")[2])]
            sample = {name: sample[name] for name in kinds}
            draws = partial(drawn, position)
            for name, expected in built(sample, draws, monkeypatch, int(training), kinds, **options):
                given = batch[name][row]
                if name == "caption":
                    assert given == expected
                    continue
                assert np.asarray(given).dtype == np.asarray(expected).dtype, name
                np.testing.assert_array_equal(given, expected, err_msg=f"{name} of sample {key}, {options}")
            position += 1
    assert position >= min(count, 4)


def drawn(position, step):
    return generator_at(SEED, step, position)


@pytest.mark.parametrize(
    ("seed", "step", "position"), [(0, "color/Hue/0", 0), (-5, "global/1/geometry/Flip/0", 2**40 + 1)]
)
def test_draws_are_those_of_the_published_generator(seed, step, position):
    """Philox 4x64 with 128 bits as its key: the position above BLAKE2b of seed and step."""
    digest = blake2b(f"{seed}\0{step}".encode(), digest_size=8).digest()
    expected = np.random.Generator(np.random.Philox(key=position << 64 | int.from_bytes(digest, "little")))
    generator_at(1, "other", 2).integers(0, 256, 3, np.uint8)  # leaves half a number
    made = generator_at(seed, step, position)
    for draw in (
        lambda one: one.random(3),
        lambda one: one.integers(0, 9, 3, np.uint8),
        lambda one: one.normal(size=2),
    ):
        np.testing.assert_array_equal(draw(made), draw(expected))


@pytest.mark.parametrize("ops", GEOMETRY.values(), ids=GEOMETRY)
def test_geometry_is_the_same_ahead_and_at_load(made, data, ops, monkeypatch):
    """In training with the same draws, in evaluation as variant 0."""
    check_equal(made, data, monkeypatch, geometry=ops)
    check_equal(made, data, monkeypatch, 4, "val", geometry=ops)


CUTS = {
    "crop, flip": [augment.Crop(24, 30), augment.Flip()],
    "flips, crops": [
        augment.Flip(0.5, "vertical"), augment.Flip(), augment.Crop(40, 30), augment.Flip(), augment.Flip(0.5, "vertical"),
        augment.Crop(31, 20), augment.CenterCrop(24, 15),
    ],
    "crops that pad": [augment.Crop(30, 40), augment.Flip(), augment.Crop(60, 25), augment.Flip(1, "vertical")],
}  # fmt: skip


@pytest.mark.parametrize("ops", CUTS.values(), ids=CUTS)
def test_rows_that_are_only_cut_are_the_same_ahead_and_at_load(made, data, ops, monkeypatch):
    """Without boxes, points, derived inputs and color, a window is cut out of the decoded pixels."""
    kinds = {name: kind for name, kind in KINDS.items() if name not in ("boxes", "names", "points")}
    check_equal(made, data, monkeypatch, kinds=kinds, geometry=ops)
    check_equal(made, data, monkeypatch, 4, "val", kinds, geometry=ops)


class Corner(augment.Crop):
    """A user's own crop, with draws of its own."""

    def __call__(self, size, generator):
        return augment.Crop(self.height, self.width).window(size, None)._replace(top=1, left=2).transform()


def test_an_own_crop_is_called(made, data, monkeypatch):
    check_equal(made, data, monkeypatch, kinds={"image": "image"}, geometry=[Corner(20, 24), augment.Flip()])
    (batch,) = batches(data, 1, fields=["image", "key"], variants=0, batch_size=4, geometry=[Corner(20, 24)])
    for image, key in zip(batch["image"], batch["key"], strict=True):
        stored = made.values["train"][0][int(str(key).rpartition("/")[2])]["image"]
        assert np.array_equal(image, stored[1:21, 2:26])


class Refuses(augment.Crop):
    """A user's own crop, which cannot work on one sample in twenty."""

    def window(self, size, generator):
        if generator is not None and generator.random() > 0.95:
            raise ValueError("no window fits")
        return super().window(size, None)


def test_a_crop_that_cannot_work_on_a_sample_makes_it_a_bad_record(data):
    with pytest.raises(RecordError, match="geometry of 'geometry/Refuses/0': ValueError: no window fits"):
        batches(data, 50, fields=["image"], geometry=[Refuses(20, 24)])


@pytest.mark.parametrize("op", COLOR, ids=str)
def test_color_is_the_same_ahead_and_at_load(made, data, op, monkeypatch):
    check_equal(made, data, monkeypatch, 8, color=[op, augment.Brightness(0.1)])
    check_equal(made, data, monkeypatch, 4, "val", color=[op])


@pytest.mark.parametrize("split", ["train", "val"])
def test_derived_inputs_are_the_same_ahead_and_at_load(made, data, split, monkeypatch):
    """From the warped fields, in the order in which they are named, before color."""
    ops = [augment.RandomResizedCrop(40, 44, (0.3, 1)), augment.Flip(), augment.Rotate(5)]
    check_equal(made, data, monkeypatch, 8, split, geometry=ops, derive=DERIVE, color=[augment.Invert(1)])


def test_everything_is_tried():
    tried = {type(op).__name__ for ops in (*GEOMETRY.values(), COLOR) for op in ops}
    inside = {"Custom", "MixUp", "CutMix", "ColorOp", "GeometryOp", "Transform"}
    assert tried >= set(augment.__all__) - inside
    assert {type(one).__name__ for one in DERIVE.values()} == set(derive.__all__) - {"Derived"}


def chain(rng):
    """A random chain of everything, from each list a few."""
    geometry = [op for name in rng.permutation(list(GEOMETRY))[: rng.integers(4)] for op in GEOMETRY[name]]
    color = [COLOR[number] for number in rng.permutation(len(COLOR))[: rng.integers(3)]]
    names = [name for name in DERIVE if name in ("clicks", *rng.permutation(list(DERIVE))[: rng.integers(5)])]
    # After a Rotate90, or a chain of several of them, the sizes of samples differ without a last crop.
    return {
        "geometry": [*geometry, augment.Crop(24, 24)],
        "derive": {name: DERIVE[name] for name in names},
        "color": color,
    }


@pytest.mark.parametrize("number", range(10))
def test_random_chains_are_the_same_ahead_and_at_load(made, data, number, monkeypatch):
    check_equal(made, data, monkeypatch, 4, **chain(np.random.default_rng(number)))


def test_images_of_different_sizes(make_dataset, monkeypatch):
    """Also where geometry pads them, and where the samples of a batch stay of different sizes."""
    options = {"fields": tuple(KINDS), "kinds": KINDS, "codec": CODEC}
    made = make_dataset(samples={"train": 8}, make=lambda rng, number: scene(rng, 100 + number), **options)
    made.seal(lambda document: document.update(recipe=RULES))
    data = tfprep.open(made.path)
    for ops in ([augment.Crop(50, 45), augment.Flip()], [augment.RandomResizedCrop(24, 24)], [augment.Rotate(9)]):
        check_equal(made, data, monkeypatch, 8, geometry=ops, derive={"distance": derive.Distance(target=1, void=5)})


# --- functions and classes of users -------------------------------------------------------------------------------------


def halved(sample, draws):
    """A whole-sample function: every second pixel, from one of two."""
    first = int(draws.integers(2))
    smaller = {name: sample[name][first::2, first::2] for name in ("image", "mask", "depth")}
    return {**sample, **smaller, "boxes": sample["boxes"] / np.float32(2), "points": sample["points"] * [0.5, 0.5, 1]}


def test_whole_sample_functions_are_the_same_ahead_and_at_load(made, data, monkeypatch):
    """Between two resamplings; in evaluation they are left out."""
    ops = [augment.Rotate(9), augment.Custom(halved), augment.Crop(16, 20)]
    check_equal(made, data, monkeypatch, 12, geometry=ops)
    check_equal(made, data, monkeypatch, 4, "val", geometry=ops)


def weighed(sample, draws):
    return {**sample, "weight": np.float32(draws.random())} if "weight" in sample else sample


def weighed_too_much(sample, draws):
    return {**sample, "weight": np.float64(1e300)}


def without(name):
    return lambda sample, draws: {field: value for field, value in sample.items() if field != name}


def half_of_others(sample, draws):
    """Numbers that are whole in the first sample."""
    return sample["mask"] * (0.5 if sample["weight"] else 1)


def test_what_a_function_leaves_out_or_makes_of_another_type_is_an_error(data):
    for name in ("image", "weight"):
        with pytest.raises(RecordError, match=f"a function in geometry returned no '{name}'"):
            batches(data, 1, geometry=[augment.Custom(without(name))], fields=["image", "weight", "mask"])
    halves = {"half": derive.Own(half_of_others)}
    with pytest.raises(RecordError, match="'half' is float64, in the other records it is uint8"):
        batches(data, 1, derive=halves, fields=["half"], batch_size=12)


def test_what_a_function_makes_of_other_fields_has_their_type_and_is_the_same_in_all_views(data):
    with pytest.raises(RecordError, match="do not fit into float32"):
        batches(data, 1, geometry=[augment.Custom(weighed_too_much)], fields=["image", "weight"])
    views = {"a": (2, {"geometry": [augment.Custom(weighed)]})}
    with pytest.raises(
        RecordError, match="a function in geometry made 'weight' differ between views; derive it instead"
    ):
        batches(data, 1, fields=["image", "weight"], views=views)
    (batch,) = batches(data, 1, fields=["image", "caption"], views=views)
    assert all(text.startswith("é ") for text in batch["caption"])


class Roll:
    """A new geometry op: moves the image to the right, by whole pixels."""

    effects = frozenset({"crop"})

    def __init__(self, most):
        self.most = most

    def __call__(self, size, generator):
        shift = 0 if generator is None else int(generator.integers(self.most))
        return augment.Transform(np.array([[1.0, 0, shift], [0, 1, 0], [0, 0, 1]]), size)


class Parity:
    """A new derived input: where pixels of a mask have an odd number."""

    kind = "mask"
    follows = frozenset({"crop"})
    inputs = ("of",)

    def __init__(self, of="mask"):
        self.of = of

    def __call__(self, sample, generator):
        return sample[self.of] % 2


def warm(image, generator):
    return np.clip(image + generator.integers(0, 30, image.shape), 0, 255).astype(np.uint8)


def test_a_new_op_and_a_new_derived_input_need_no_other_file(tmp_path, made, data, monkeypatch):
    """They are the same ahead and at load; stored ahead, the field follows what it says, and is refused under anything else."""
    check_equal(made, data, monkeypatch, 12, geometry=[Roll(9)], derive={"odd": Parity()}, color=[warm])
    check_equal(made, data, monkeypatch, 4, "val", geometry=[Roll(9)], derive={"odd": Parity()}, color=[warm])
    stored = built_dataset(
        tmp_path, derive={"odd": Parity(), "own": derive.Own(twice, "mask")}, fill={"mask": 5, "odd": 1}
    )
    plain = next(iter(stored.numpy_loader("val", 4, fields=["mask", "odd"])))
    assert np.array_equal(plain["odd"], plain["mask"] % 2)
    for batch in stored.numpy_loader("train", 4, fields=["mask", "odd"], geometry=[Roll(9)]):
        assert np.array_equal(batch["odd"], batch["mask"] % 2)
    for op, field, effects in (
        (augment.Flip(), "odd", "flip"),
        (lambda size, draws: None, "odd", "flip, resize, warp"),
    ):
        with pytest.raises(
            LoaderError, match=f"^geometry: '{field}' does not follow .*, which may {effects}: derive it at load"
        ):
            stored.numpy_loader("train", 4, fields=["mask", field], geometry=[op])
    with pytest.raises(
        LoaderError, match=r"^geometry: 'own' does not follow Roll, which may crop: .* with the recipe's function"
    ):
        stored.numpy_loader("train", 4, geometry=[Roll(9)])


def twice(sample, draws):
    return sample["mask"] * 2


def built_dataset(folder, count=6, **options):
    """A built dataset of images and masks, with all fields of the options stored without loss."""
    for number in range(count):
        sample = scene(np.random.default_rng(number), number)
        for split in ("train", "val"):
            save(folder / f"raw/{split}/{number}.png", sample["image"])
            save(folder / f"raw/{split}annot/{number}.png", sample["mask"])
    stored = options.get("derive", {})
    store = {
        "image": codecs.Png(),
        "mask": codecs.Png(),
        **dict.fromkeys(stored, codecs.Raw()),
        **options.pop("store", {}),
    }
    source = sources.Paired(image="{split}/*.png", mask="{split}annot/*.png")
    recipe = Recipe("made", source, store, **{"fill": {"mask": 5}, **options})
    tfprep.build(recipe, folder / "out", folder / "raw", options=BuildOptions(workers=0))
    return tfprep.open(folder / "out")


# --- what cannot be -----------------------------------------------------------------------------------------------------


STORED = {
    "distance": derive.Distance(target=(1, 2), truncate_px=9.5), "offsets": derive.InstanceOffsets(void=5),
    "edges": derive.Sobel(of="both"), "clicks": derive.ClickPoints(void=5),
    "parts": derive.OneHot(6), "one": derive.OneObject(target=2, void=5),
}  # fmt: skip
REFUSED = [
    ("distance", augment.Resize(9, 9), r"derive={'distance': derive.Distance\(target=\(1, 2\), truncate_px=9.5\)}"),
    ("distance", augment.RandomResizedCrop(9, 9), "may resize"),
    ("distance", augment.OneOf([augment.Flip(), augment.Rotate(3)]), "OneOf, which may warp"),
    ("offsets", augment.Flip(), r"derive={'offsets': derive.InstanceOffsets\(void=5\)}"),
    ("edges", augment.Flip(), r"derive={'edges': derive.Sobel\(of='both'\)}"),
    ("clicks", augment.Crop(9, 9), "may crop"),
    ("parts", augment.Resize(9, 9), r"derive={'parts': derive.OneHot\(classes=6\)}"),
]
FOLLOWS = [
    ("distance", [augment.Flip(), augment.Crop(9, 9)]),
    ("parts", [augment.Flip(), augment.Crop(9, 9)]),
    ("one", [augment.RandomResizedCrop(9, 9), augment.Flip()]),
]


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    options = {"derive": STORED, "variants": {"train": 2}}
    store = {"clicks": codecs.Scalar()}
    return built_dataset(tmp_path_factory.mktemp("stored"), color=[augment.Brightness()], store=store, **options)


@pytest.mark.parametrize(("field", "op", "message"), REFUSED)
def test_a_stored_field_that_cannot_follow_is_named_with_the_line_that_derives_it(stored, field, op, message):
    """In evaluation too: what is refused does not depend on the draws."""
    for split in ("train", "val"):
        with pytest.raises(LoaderError, match=f"^geometry: '{field}' does not follow .*{message}"):
            stored.numpy_loader(split, 4, fields=["mask", field], geometry=[op])
        views = {"a": (1, {"geometry": [op]})}
        with pytest.raises(LoaderError, match=f"'{field}' does not follow"):
            stored.numpy_loader(split, 4, fields=["mask", field], views=views)
    stored.numpy_loader("train", 4, fields=["mask"], geometry=[op])


@pytest.mark.parametrize(("field", "ops"), FOLLOWS)
def test_a_stored_field_follows_what_it_says(stored, field, ops):
    assert len(next(iter(stored.numpy_loader("train", 4, fields=["mask", field], geometry=ops)))[field]) == 4


def test_zeros_and_ones_of_classes_are_not_rounded_by_mixup(stored):
    """Stored, derived at load, and truth values: those of a mixed image would be those of one of its two."""
    odd = derive.Own(lambda sample, draws: sample["mask"] % 2 > 0, reads=["mask"])
    for name, made in {"parts": {}, "new": {"new": derive.OneHot(6)}, "odd": {"odd": odd}}.items():
        options = {"fields": ["image", name], "derive": made, "geometry": [augment.Crop(9, 9)]}
        with pytest.raises(LoaderError, match=f"MixUp cannot mix the class numbers of '{name}'; use CutMix"):
            stored.numpy_loader("train", 4, mix=[augment.MixUp()], **options)
        batches(stored, 1, batch_size=4, mix=[augment.CutMix()], **options)


def quarters(sample, draws):
    return np.kron([[1, 2], [3, 4]], np.ones((24, 28))).astype(np.uint8)


def test_rows_of_derived_boxes_that_are_not_visible_are_dropped_if_the_recipe_names_them(tmp_path):
    found = {
        "four": derive.Own(quarters, "mask", {"crop"}),
        "found": derive.InstanceBoxes("four"),
        "majority": derive.InstanceClasses("four", classes="four"),
    }
    options = {"fields": ["image", *found], "geometry": [augment.Crop(6, 6)], "batch_size": 6}
    with pytest.raises(LoaderError, match=r"build with Recipe\(row_fields={'found': \['majority'\]}\)"):
        built_dataset(tmp_path / "0", derive=found).numpy_loader("train", **options)
    data = built_dataset(tmp_path / "1", derive=found, row_fields={"found": ["majority"]})
    (batch,) = batches(data, 1, **options)
    for seen, boxes, classes in zip(*(batch[name] for name in found), strict=True):
        assert np.unique(seen).tolist() == classes.tolist()
        assert len(boxes) == len(classes)
    assert min(map(len, batch["found"])) < 4


def test_what_a_distance_is_outside_of_its_frame_is_not_known(tmp_path, stored):
    """0 would be the object itself."""
    with pytest.raises(
        LoaderError, match=r"Translate.* no number is known for them in 'distance'; derive it at load, der"
    ):
        stored.numpy_loader("train", 4, fields=["mask", "distance"], geometry=[augment.Translate()])
    with pytest.raises(RecordError, match="no number is known for them in this map"):
        batches(stored, 1, fields=["mask", "distance"], geometry=[augment.Crop(60, 60)], batch_size=4)
    known = built_dataset(tmp_path, derive={"distance": derive.Distance()}, fill={"mask": 5, "distance": 99})
    (batch,) = batches(known, 1, fields=["distance"], geometry=[augment.CenterCrop(60, 60)], batch_size=4)
    assert (batch["distance"][:, :6] == 99).all()


def test_the_line_that_derives_a_field_at_load_takes_its_place(stored):
    """Under the same name: the stored one is not read."""
    line = {"distance": derive.Distance(target=(1, 2), truncate_px=9.5)}
    for batch in stored.numpy_loader(
        "train", 4, fields=["mask", "distance"], geometry=[augment.Resize(24, 28)], derive=line
    ):
        for mask, distance in zip(batch["mask"], batch["distance"], strict=True):
            assert np.array_equal(distance, line["distance"]({"mask": mask}, None))


def fails(sample, draws):
    raise ValueError("no idea")


WRONG = [
    (
        {"derive": {"x": derive.Distance(mask="pose")}},
        r"derive\['x'\]: Distance\(mask='pose'\) names no field that is there; there are clicks, ",
    ),
    (
        {"derive": {"x": derive.Own(twice, reads=["pose"])}},
        "'x' reads 'pose', which is not stored; there are image, mask",
    ),
    ({"derive": {"x": derive.Sobel("mask")}}, "needs a field of the kind image or map; 'mask' has the kind mask"),
    (
        {"derive": {"x": derive.InstanceBoxes()}},
        "'mask' has 5 for void, and InstanceBoxes without void= takes it for an object",
    ),
    (
        {"derive": {"x": derive.SignedDistance()}},
        "'mask' has 5 for void, and SignedDistance without void= takes it for an object; write void=5",
    ),
    (
        {"derive": {"o": derive.OneObject(target=2, void=5), "x": derive.Clicks(mask="o")}},
        "'o' has 255 for void, and Clicks without void= takes it for an object; write void=255",
    ),
    ({"derive": {"x": derive.Sobel()}}, "'x' reads 'image', and the recipe's color ops have changed the stored pixels"),
    (
        {"derive": {"x": derive.Own(twice)}},
        r"'x' reads 'image', .*say so: derive.Own\(function, reads=\[...\]\) for 'x'",
    ),
    ({"derive": {"x": derive.Own(fails, reads=["mask"])}}, "derive of 'x': ValueError: no idea"),
    (
        {"derive": {"x": derive.Own(twice, "image", reads=["mask"])}},
        r"derive of .*: .*an image, uint8, .* got uint8 \[48, 56\]",
    ),
    ({"derive": {"x": derive.Distance}}, "call it: Distance\\(\\)"),
    ({"derive": [derive.Distance()]}, "derive: expected a dict"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_inputs_that_cannot_be_derived_at_load(stored, options, message):
    with pytest.raises(LoaderError, match=message):
        stored.numpy_loader("train", 4, **{"fields": ["image", *options.get("derive", ())], **options})


def test_inputs_of_images_are_derived_where_no_color_ran_ahead(stored):
    """Of variant 0, and of functions that say that they read no image."""
    for derived, options in ((derive.Sobel(), {"variants": 0}), (derive.Own(twice, reads=["mask"]), {})):
        batch = next(iter(stored.numpy_loader("train", 4, fields=["x"], derive={"x": derived}, **options)))
        assert batch["x"].shape == (4, 48, 56)


def still(size, generator):
    return augment.Transform(np.eye(3), size)


@pytest.mark.parametrize(("op", "may_change_colors"), [(Roll(3), True), (still, False), (augment.Flip(), False)])
def test_an_object_of_the_user_in_the_geometry_may_have_changed_colors(tmp_path, op, may_change_colors):
    """A policy of the user may; a function of a size cannot."""
    data = built_dataset(tmp_path, 2, geometry=[op], variants={"train": 2})
    with pytest.raises(LoaderError, match="color ops have changed") if may_change_colors else nullcontext():
        data.numpy_loader("train", 2, fields=["x"], derive={"x": derive.Sobel()})


def test_fields_that_a_derived_input_reads_need_not_be_delivered(stored):
    derived = {"one": derive.OneObject(target=2, void=5), "maps": derive.Clicks(mask="one", target=1, void=255)}
    loader = stored.numpy_loader("train", 4, inputs=["maps"], derive=derived, geometry=[augment.Crop(20, 20)])
    batches = [next(iter(loader)) for _ in range(2)]
    assert batches[0].shape == (4, 20, 20, 2)
    assert not np.array_equal(*batches), "clicks are drawn for each epoch"


def changes_its_type(sample, draws):
    """float64, beyond float32 in some samples only."""
    return np.full((2, 4), 1e300 if sample["mask"].sum() % 3 == 0 else 0.1)


def test_derived_values_have_the_type_that_their_codec_stores(stored):
    """A value that it does not hold is an error that names field and key, never infinity."""
    derived = {"x": derive.Own(changes_its_type, "scalar", reads=["mask"])}
    options = {"fields": ["x", "key"], "derive": derived, "batch_size": 6, "seed": 1}
    with pytest.raises(RecordError, match=r"do not fit into float32.* \(key '"):
        list(stored.numpy_loader("train", **options).repeat(9))
    for batch in stored.numpy_loader("train", **options, on_bad="skip"):
        assert all(value.dtype == np.float32 for value in batch["x"])
        assert all((value == np.float32(0.1)).all() for value in batch["x"])


def draws_only(sample, draws):
    return draws.random(3)


@pytest.mark.parametrize(("fields", "reads"), [(["x"], []), (["x", "label"], []), (["x"], ["image"])])
def test_a_derived_input_may_read_no_field_and_the_first_record_may_be_damaged(make_dataset, fields, reads):
    """Also where the index has all others, so that no record would be read."""
    made = make_dataset(samples={"train": 9}, fields=["label", "image"])
    overwrite(next(made.path.glob("*00000-of*")), 20, b"\0")
    options = {"derive": {"x": derive.Own(draws_only, "scalar", reads=reads)}, "fields": fields, "on_bad": "skip"}
    for position, batch in enumerate(batches(tfprep.open(made.path), 4, batch_size=1, seed=SEED, **options)):
        np.testing.assert_array_equal(batch["x"][0], drawn(position, "derive/x").random(3).astype(np.float32))


def of_two_widths(sample, draws):
    return np.zeros((2, 2 + (sample["weight"] > 0)), np.float32)


@pytest.mark.parametrize("pad", [{}, {"x": 4}])
def test_what_a_function_makes_is_of_one_shape(data, pad):
    """TensorFlow's ragged tensors would hold the numbers of one sample in the rows of another."""
    derived = {"x": derive.Own(of_two_widths, "points", reads=["weight"])}
    with pytest.raises(RecordError, match=r"'x' has shape \(2, 3\), in the .* has \((None|2), 2\) \(key 'train/"):
        batches(data, 2, fields=["x"], derive=derived, pad=pad)


# --- readers ------------------------------------------------------------------------------------------------------------


def test_threads_processes_resumes_and_hosts_deliver_the_same(data):
    derived = {"maps": derive.Clicks(target=2, void=5), "clicks": derive.ClickPoints(target=2, void=5)}
    options = {"geometry": GEOMETRY["RandAugment"], "derive": derived, "batch_size": 5}  # clicks and boxes are lists
    check_every_way(data, 5, starts=(3,), hosts=1, fields=["boxes", "names", "clicks", "caption", "maps"], **options)


def test_views_derive_from_their_own_windows(data):
    views = {"global": (2, {"geometry": [augment.Crop(24, 24)]}), "local": (3, {"geometry": [augment.Resize(9, 9)]})}
    derived = {"distance": derive.Distance(target=2, void=5)}
    for batch in batches(data, 3, views=views, derive=derived, fields=["mask", "distance"]):
        for kind, count in (("global", 2), ("local", 3)):
            assert len(batch["distance"][kind]) == count
            for masks, distances in zip(batch["mask"][kind], batch["distance"][kind], strict=True):
                for mask, distance in zip(masks, distances, strict=True):
                    assert np.array_equal(distance, derived["distance"]({"mask": mask}, None))


def test_views_without_ops_are_views(data):
    views = {"first": (2, {}), "second": (1, {"geometry": []})}
    (whole,), (batch,) = ([data.numpy_loader("val", 4, fields=["image"], views=given)[0]] for given in (None, views))
    assert [(name, len(images)) for name, images in batch["image"].items()] == [("first", 2), ("second", 1)]
    for images in batch["image"].values():
        assert all(np.array_equal(image, whole["image"]) for image in images)

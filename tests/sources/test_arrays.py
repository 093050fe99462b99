"""Arrays of NumPy's files, compared with what was saved; and what is not an array of images."""

import numpy as np
import pytest

from tests.sources.building import built, fields_of
from tfprep import codecs
from tfprep.errors import BuildError, SampleError, SourceError
from tfprep.sources import Arrays
from tfprep.sources.detection.detect import detect

RGB = np.random.default_rng(0).integers(0, 256, (6, 8, 10, 3)).astype(np.uint8)


@pytest.mark.parametrize(
    ("images", "first", "expected"),
    [
        (RGB, False, RGB),
        (RGB[..., 0], False, np.repeat(RGB[..., :1], 3, axis=3)),
        (RGB.transpose(0, 3, 1, 2).copy(), True, RGB),
        (RGB.astype(">u2") * 200, False, RGB.astype(np.uint16) * 200),
        (RGB / 255, False, (RGB / 255).astype(np.float32)),
    ],
    ids=["RGB", "gray", "channels first", "big-endian", "float64"],
)
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed], ids=["npz", "compressed"])
def test_rows_of_arrays(tmp_path, images, first, expected, save):
    (tmp_path / "raw").mkdir()
    save(
        tmp_path / "raw/d.npz", x_train=images[:4], y_train=np.array([[3], [7], [3], [7]]), x_test=images[4:],
        y_test=[3, 7],
    )  # fmt: skip
    np.save(tmp_path / "raw/x.npy", images)
    source = Arrays("d.npz:x_{split}", "d.npz:y_{split}", channels_first=first)
    fields = fields_of(source, tmp_path / "raw", tmp_path / "out")
    for number in range(6):
        key = f"d.npz/x_train/{number}" if number < 4 else f"d.npz/x_test/{number - 4}"
        np.testing.assert_array_equal(fields[key]["image"], expected[number])
        assert (fields[key]["split"], fields[key]["label"]) == ("train" if number < 4 else "test", number % 2)
    assert source.scan(tmp_path / "raw").classes == {"label": ("3", "7")}
    fields = fields_of(Arrays("x.npy", channels_first=first), tmp_path / "raw", tmp_path / "plain")
    np.testing.assert_array_equal(fields["x.npy/5"]["image"], expected[5])


def test_each_array_of_images_has_its_own_labels(tmp_path):
    """As CIFAR's batches; numbers are those of the classes that are given."""
    for name, rows in (("a", slice(0, 3)), ("b", slice(3, 6))):
        np.savez(tmp_path / f"{name}.npz", x=RGB[rows], y=np.arange(6)[rows] % 4)
    source = Arrays("*.npz:x", "*.npz:y", classes=("p", "q", "r", "s"))
    assert [entry.values[1] for entry in source.scan(tmp_path).entries] == [0, 1, 2, 3, 0, 1]
    with pytest.raises(SourceError, match=r"'3' is none of the 3 classes: 'p'"):
        Arrays("*.npz:x", "*.npz:y", classes=("p", "q", "r")).scan(tmp_path)
    with pytest.raises(SourceError, match=r"a.npz/x has 3 images, and 'a.npz:y' has 0 labels"):
        Arrays("*.npz:x", "a.npz:y").scan(tmp_path)


def test_stars_in_the_names_of_files_and_of_arrays(tmp_path):
    """They are different placeholders, and a name of an array may have a slash."""
    for name in "12":
        np.savez_compressed(tmp_path / "part.npz", **{f"a/x_{n}": RGB[:n] for n in (1, 2)})
        (tmp_path / "part.npz").rename(tmp_path / f"part_{name}.NPZ")
    entries = list(Arrays("part_*.npz:a/x_*").scan(tmp_path).entries)
    assert sorted({entry.key.rpartition("/")[0] for entry in entries}) == [
        f"part_{name}.NPZ/a/x_{n}" for name in "12" for n in (1, 2)
    ]
    assert len(entries) == 6


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_damaged_array_of_an_archive_is_named(tmp_path, save):
    save(tmp_path / "d.npz", x=RGB)
    data = bytearray((tmp_path / "d.npz").read_bytes())
    data[300:340] = bytes(40)
    (tmp_path / "d.npz").write_bytes(data)
    with pytest.raises(SourceError, match=r"d\.npz: x\.npy cannot be read: "):
        Arrays("d.npz:x").scan(tmp_path)


def test_an_array_that_is_written_again_during_a_build_ends_it(tmp_path):
    """Its rows are in other places than those that were listed."""
    root = tmp_path / "raw"
    root.mkdir()
    np.savez(root / "d.npz", x=RGB)

    def derived(sample, generator):
        np.savez(root / "d.npz", a=np.zeros(99), x=RGB + 1)
        return sample["image"][:, :, 0]

    store = {"image": codecs.Raw(), "m": codecs.Raw()}
    with pytest.raises(BuildError, match=r"d\.npz changed while the build was running, .*; run the build again"):
        built(Arrays("d.npz:x"), root, tmp_path / "out", store=store, derive={"m": derived})
    assert len(fields_of(Arrays("d.npz:x"), root, tmp_path / "out")) == len(RGB)


def test_a_damaged_header_is_named(tmp_path):
    np.save(tmp_path / "x.npy", RGB)
    whole = (tmp_path / "x.npy").read_bytes()
    for before, after in ((b"}", b" "), (b"'shape'", b"'shape "), (b"False", b"Fa se")):
        (tmp_path / "x.npy").write_bytes(whole.replace(before, after, 1))
        with pytest.raises(SourceError, match=r"x\.npy is not an array of NumPy that can be read"):
            Arrays("x.npy").scan(tmp_path)


@pytest.mark.parametrize("number", [np.nan, -np.inf, 1e39])
def test_images_of_numbers_that_float32_does_not_hold_are_rejected(number):
    raw = {"form": ["<f8", 1, 2], "pixels": np.array([[1.5, number]]).tobytes()}
    with pytest.raises(SampleError, match="NaN, infinity or a number that float32 does not hold"):
        Arrays("x.npy").decoders()["image"].decode(raw, None)


LAYOUTS = [
    ({"x.npy": RGB, "y.npy": np.arange(6) % 2}, "Arrays(image='x.npy', label='y.npy', splits=", 6),
    (
        {
            "train_images.npy": RGB, "train_labels.npy": np.arange(6), "test_images.npy": RGB,
            "test_labels.npy": np.arange(6),
        },
        "Arrays(image='{split}_images.npy', label='{split}_labels.npy')", 12,
    ),
    (
        {"d.npz": {"x_train": RGB, "y_train": np.arange(6), "x_val": RGB, "y_val": np.arange(6)}},
        "Arrays(image='d.npz:x_{split}', label='d.npz:y_{split}')", 12,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("files", "source", "count"), LAYOUTS, ids=["pair", "splits", "npz"])
def test_init_recognizes_arrays(tmp_path, files, source, count):
    save(tmp_path, files)
    found = detect(tmp_path)
    assert source in repr(found.source)
    assert sum(found.facts.splits.values()) == count
    assert not any("does not read" in line for line in found.lines())


def save(root, files):
    for name, content in files.items():
        (root / name).parent.mkdir(exist_ok=True)
        if isinstance(content, dict):
            np.savez(root / name, **content)
        else:
            np.save(root / name, content, allow_pickle=True)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.npy": RGB, "b.npy": RGB}, "nothing says which array holds images .*: a.npy uint8"),
        ({f"{n}/x.npy": RGB for n in "abcdefghi"}, r"f/x\.npy uint8 \[6, 8, 10, 3\], …; write the recipe"),
        ({"a.npy": RGB[0]}, "nothing says which array holds images"),
        ({"a.npy": RGB.transpose(0, 3, 1, 2).copy()}, "nothing says which array holds images .*channels_first="),
        ({"a.npy": np.array([{"a": 1}] * 3, object)}, "nothing says which array holds images"),
        ({"a.npy": RGB.astype(np.int64)}, r"of uint8, uint16, float32, float64 in C order; got int64 \[6, 8, 10, 3\]"),
        ({"a.npy": np.asfortranarray(RGB)}, "in Fortran order"),
        ({"x.npy": RGB, "y.npy": np.arange(6) + 0.5}, "classes are whole numbers or names; got float64 with fractions"),
    ],
)
def test_what_is_not_an_array_of_images_is_named(tmp_path, files, message):
    save(tmp_path, files)
    with pytest.raises(SourceError, match=message):
        detect(tmp_path)


def test_labels_that_do_not_fit_are_named(tmp_path):
    save(tmp_path, {"x.npy": RGB, "y.npy": np.arange(6)})
    labels = tmp_path / "y.npy"
    whole = labels.read_bytes()
    for content, message in (
        (whole[:-3], r"y\.npy is cut short: its header says 6 values"),
        (whole[:-8], r"y\.npy is cut short: its header says 6 values"),
        (b"no array", r"y.npy is not an array of NumPy that can be read"),
    ):
        labels.write_bytes(content)
        with pytest.raises(SourceError, match=message):
            Arrays("x.npy", "y.npy").scan(tmp_path)
    np.save(labels, np.arange(5))
    with pytest.raises(SourceError, match=r"x.npy has 6 images, and 'y.npy' has 5 labels"):
        Arrays("x.npy", "y.npy").scan(tmp_path)

"""Images with their masks and other files, on trees written for each case and on CamVid's layout."""

import re

import numpy as np
import pytest

from tests.photos import save
from tests.sources.building import built, fields_of, write_picture
from tfprep.errors import SampleError, SourceError
from tfprep.sources import Paired, cityscapes, read_files
from tfprep.sources.paired import CITYSCAPES_CLASSES

CAMVID = Paired(image="{split}/*.png", mask="{split}annot/*.png")


def files(source, root):
    return [entry.files for entry in source.scan(root).entries]


@pytest.mark.parametrize(
    ("source", "paths", "expected"),
    [
        (
            Paired("images/*", "masks/*"), ["images/1.JPG", "images/2.jpeg", "masks/1.png", "masks/2.BMP"],
            [("images/1.JPG", "masks/1.png"), ("images/2.jpeg", "masks/2.BMP")],
        ),
        (
            Paired("*.jpg", "*_mask.png"), ["x.jpg", "x_mask.png", "y.jpg", "y_mask.png"],
            [("x.jpg", "x_mask.png"), ("y.jpg", "y_mask.png")],
        ),
        (
            CAMVID,
            ["train/b.png", "train/a.png", "trainannot/a.png", "trainannot/b.png", "val/c.png", "valannot/c.png"],
            [("train/a.png", "trainannot/a.png"), ("train/b.png", "trainannot/b.png"), ("val/c.png", "valannot/c.png")],
        ),
        (Paired("a/*", fields={"after": ("image", "b/*")}), ["a/1.png", "b/1.png"], [("a/1.png", "b/1.png")]),
        (
            Paired("images/*", "masks/*"), ["images/a.jpg", "images/b.jpg", "masks/a.png"],
            [("images/a.jpg", "masks/a.png"), ("images/b.jpg", "masks/b.*")],
        ),
        (Paired("*.png", "*_mask.png"), ["x.png", "x_mask.png"], [("x.png", "x_mask.png")]),
        (Paired("*_rgb.png", "*.png"), ["x.png", "x_rgb.png"], [("x_rgb.png", "x.png")]),
        (Paired("a/*.png", "b/*.png"), ["a/x.PNG", "b/x.Png"], [("a/x.PNG", "b/x.Png")]),
        (
            Paired("img/**/*.jpg", "seg/**/*.png"), ["img/1.jpg", "img/p/q/1.jpg", "seg/1.png", "seg/p/q/1.png"],
            [("img/1.jpg", "seg/1.png"), ("img/p/q/1.jpg", "seg/p/q/1.png")],
        ),
        (
            Paired("{scene}/rgb/{n}.jpg", "all/{n}-{scene}.png"), ["s1/rgb/7.jpg", "all/7-s1.png"],
            [("s1/rgb/7.jpg", "all/7-s1.png")],
        ),
        (Paired("{split}/*/*.jpg", "m/*-*.png"), ["val/s/1.jpg", "m/s-1.png"], [("val/s/1.jpg", "m/s-1.png")]),
        # A suffix that is spelled as in the pattern is preferred.
        (Paired("i/*", "m/*.png"), ["i/a.jpg", "m/a.png", "m/a.PNG"], [("i/a.jpg", "m/a.png")]),
        *(
            (Paired("*/i/*", "*/m/*"), paths, [tuple(paths)])
            for paths in ([f"{name}/i/{name}.jpg", f"{name}/m/{name}.png"] for name in ("two words", "日本", "a+b(1)"))
        ),
        # Image and mask in two Unicode spellings belong together.
        *(
            (Paired("i/*", "m/*.png"), paths, [tuple(paths)])
            for paths in (["i/\u00e9.jpg", "m/e\u0301.png"], ["i/e\u0301.jpg", "m/\u00e9.png"])
        ),
    ],
)  # fmt: skip
def test_layouts(tree, source, paths, expected):
    assert files(source, tree(*paths)) == expected


def test_further_fields_have_their_kinds(tree):
    root = tree("val/left/1.png", "val/right/1.png", "val/depth/1.npy", "val/seg/1.png")
    source = Paired(
        "{split}/left/*.png",
        "{split}/seg/*.png",
        fields={"right": ("image", "{split}/right/*.png"), "depth": ("map", "{split}/depth/*.npy")},
    )
    listing = source.scan(root)
    assert listing.kinds == {"image": "image", "mask": "mask", "right": "image", "depth": "map"}
    assert listing.files == ("image", "mask", "right", "depth")
    entry = next(listing.entries)
    assert entry.files == ("val/left/1.png", "val/seg/1.png", "val/right/1.png", "val/depth/1.npy")
    raw = read_files(root, listing.files, entry)
    assert raw == {name: f"bytes of {path}".encode() for name, path in zip(listing.files, entry.files, strict=True)}


def test_labels_and_mask_classes_together(tree):
    """A folder of masks is not a class."""
    root = tree("img/dog/1.png", "img/cat/2.png", "seg/dog/1.png", "seg/cat/2.png", "cat/1.png", "cat_masks/1.png")
    listing = Paired("img/{label}/*.png", "seg/{label}/*.png", classes=("back", "front")).scan(root)
    assert listing.classes == {"mask": ("back", "front"), "label": ("cat", "dog")}
    assert [e.values for e in listing.entries] == [(0,), (1,)]
    listing = Paired("{label}/*.png", "{label}_masks/*.png").scan(root)
    assert listing.classes == {"label": ("cat",)}
    assert [(e.key, e.values) for e in listing.entries] == [("cat/1.png", (0,))]


def test_an_image_without_its_mask_is_listed_and_rejected_when_read(tree):
    root = tree("train/a.png", "train/b.png", "trainannot/a.png")
    listing = CAMVID.scan(root)
    entries = list(listing.entries)
    assert [e.key for e in entries] == ["train/a.png", "train/b.png"]
    assert listing.tally == {"image without its mask": 1}
    with pytest.raises(SampleError, match="No such file") as caught:
        read_files(root, listing.files, entries[1])
    assert (caught.value.field, caught.value.path) == ("mask", "trainannot/b.png")


def test_masks_without_an_image_are_counted(tree):
    listing = CAMVID.scan(tree("train/a.png", "trainannot/a.png", "trainannot/x.png", "valannot/y.png"))
    assert len(list(listing.entries)) == 1
    assert listing.tally == {"mask without its image": 2}


def test_a_mask_beside_its_image_is_not_left_out(tree):
    listing = Paired("*.jpg", "*.png").scan(tree("a.jpg", "a.png", "b.jpg", "b.png", "c.png", "notes.txt", "d.bmp"))
    assert len(list(listing.entries)) == 2
    assert listing.tally == {"mask without its image": 1, "not an image by its suffix": 1, "outside the pattern": 1}
    # The name of one mask says nothing of the frames, so that nothing else counts it.
    listing = Paired("{scene}_{frame}.jpg", "{scene}.png").scan(tree("s/a_1.jpg", "s/a.png", "s/b.png").joinpath("s"))
    assert len(list(listing.entries)) == 1
    assert listing.tally == {"outside the pattern": 2}


ONE, NO_MASK = "'train/a.png' should have 'trainannot/a.png'", "no image has its mask: .*"


@pytest.mark.parametrize(
    ("source", "paths", "message"),
    [
        (CAMVID, ["train/a.png"], NO_MASK + re.escape(f"{ONE}, and no file fits '{{split}}annot/*.png'")),
        (
            CAMVID, ["train/a.png", "trainannot/a_L.png"],
            NO_MASK + re.escape("and the first file of '{split}annot/*.png' is 'trainannot/a_L.png'"),
        ),
        (
            Paired("images/*", "masks/*"), ["images/a.jpg", "masks/a.png", "masks/a.bmp"],
            r"masks/: 'a.png' and 'a.bmp' both fit 'masks/\*' for one image",
        ),
    ],
)  # fmt: skip
def test_no_mask_at_all_and_two_for_one_image_are_refused(tree, source, paths, message):
    with pytest.raises(SourceError, match=message):
        files(source, tree(*paths))


# --- masks of other numbers or of colors, and the presets of public data sets ----------------------------------------

SIZE = 40, 56
COLORS = {(128, 64, 128): 3, (0, 0, 0): 255, (64, 0, 128): 300, (255, 255, 255): 7}


def numbers(seed, values):
    return np.random.default_rng(seed).choice(np.array(values), SIZE)


def test_colors_become_numbers_and_an_unknown_color_is_rejected(tmp_path):
    root = tmp_path / "data"
    chosen = {name: numbers(n, range(3)) for n, name in enumerate(("a", "odd", "jpeg", "clear"))}
    colors = np.array(list(COLORS), np.uint8)
    for n, (name, index) in enumerate(chosen.items()):
        write_picture(root / f"images/{name}.png", n)
        pixels = colors[index]
        pixels[3, 4] = (1, 2, 3) if name == "odd" else pixels[3, 4]
        if name == "clear":  # transparent pixels are of no color, also if white is in the palette
            pixels = np.dstack([pixels, (index > 0) * np.uint8(255)])
        save(root / f"masks/{name}.{'jpg' if name == 'jpeg' else 'png'}", pixels)
    source = Paired(image="images/*", mask="masks/*", palette=COLORS)
    fields, rejected = built(source, root, tmp_path / "out")
    expected = np.array(list(COLORS.values()))[chosen["a"]]
    np.testing.assert_array_equal(fields["images/a.png"]["mask"], expected)
    assert "the color (1, 2, 3) is not in the palette of 4 colors" in rejected["images/odd.png"]
    assert "its colors are not exact" in rejected["images/jpeg.png"]
    assert "transparent pixels" in rejected["images/clear.png"]


def test_numbers_are_mapped_and_an_unknown_number_is_rejected(tmp_path):
    root = tmp_path / "data"
    write_picture(root / "images/a.png", 1)
    stored = numbers(5, [0, 7, 9]).astype(np.uint16)
    save(root / "masks/a.png", stored)
    paired = {"image": "images/*", "mask": "masks/*"}
    fields = fields_of(Paired(**paired, numbers={0: 255, 7: 0, None: 1}), root, tmp_path / "out")
    made = fields["images/a.png"]["mask"]
    np.testing.assert_array_equal(made, np.select([stored == 0, stored == 7], [255, 0], 1))
    assert made.dtype == np.uint8
    write_picture(root / "images/b.png", 2)
    save(root / "masks/b.png", np.zeros(SIZE, np.uint16))
    fields, rejected = built(Paired(**paired, numbers={0: 255, 7: 0}), root, tmp_path / "strict")
    assert "the number 9 in the mask is not one of the 2 numbers that have a class" in rejected["images/a.png"]
    assert set(fields) == {"images/b.png"}


def test_cityscapes(tmp_path):
    """The ids and train ids of the benchmark's own table; these are some of them."""
    ids = {7: 0, 8: 1, 11: 2, 24: 11, 26: 13, 33: 18, 0: 255, 9: 255, 29: 255}
    root = tmp_path / "data"
    index = numbers(1, range(len(ids)))
    write_picture(root / "leftImg8bit/train/aachen/aachen_000000_000019_leftImg8bit.png", 1)
    name = "gtFine/train/aachen/aachen_000000_000019_gtFine"
    save(root / f"{name}_labelIds.png", np.array(list(ids), np.uint8)[index])
    save(root / f"{name}_instanceIds.png", np.zeros(SIZE, np.uint16))
    fields = fields_of(cityscapes(), root, tmp_path / "out", fill={"mask": 255})
    (row,) = fields.values()
    np.testing.assert_array_equal(row["mask"], np.array(list(ids.values()))[index])
    assert (CITYSCAPES_CLASSES[0], CITYSCAPES_CLASSES[13], row["split"]) == ("road", "car", "train")

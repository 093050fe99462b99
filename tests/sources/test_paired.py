"""Images with their masks and other files, on trees written for each case and on CamVid's layout."""

import re
import unicodedata

import pytest

from tfprep.errors import SampleError, SourceError
from tfprep.sources import Paired, read_files

CAMVID = Paired(image="{split}/*.png", mask="{split}annot/*.png")


def files(source, root):
    return [entry.files for entry in source.scan(root).entries]


def tally(source, root):
    listing = source.scan(root)
    list(listing.entries)
    return dict(listing.tally)


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
    root = tree("img/dog/1.png", "img/cat/2.png", "seg/dog/1.png", "seg/cat/2.png")
    listing = Paired("img/{label}/*.png", "seg/{label}/*.png", classes=("back", "front")).scan(root)
    assert listing.classes == {"mask": ("back", "front"), "label": ("cat", "dog")}
    assert [e.values for e in listing.entries] == [(0,), (1,)]


def test_a_mask_folder_is_not_a_class(tree):
    root = tree("cat/1.png", "cat_masks/1.png")
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
    root = tree("train/a.png", "trainannot/a.png", "trainannot/x.png", "valannot/y.png")
    assert tally(CAMVID, root) == {"mask without its image": 2}


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (("train/a.png",), "'train/a.png' should have 'trainannot/a.png', and no file fits '{split}annot/*.png'"),
        (("train/a.png", "trainannot/a_L.png"), "and the first file of '{split}annot/*.png' is 'trainannot/a_L.png'"),
    ],
)
def test_a_pattern_that_matches_no_mask_raises(tree, paths, message):
    with pytest.raises(SourceError, match=f"no image has its mask: .*{re.escape(message)}"):
        files(CAMVID, tree(*paths))


def test_two_masks_for_one_image_are_refused(tree):
    root = tree("images/a.jpg", "masks/a.png", "masks/a.bmp")
    with pytest.raises(SourceError, match=r"masks/: 'a.png' and 'a.bmp' both fit 'masks/\*' for one image"):
        files(Paired("images/*", "masks/*"), root)


def test_a_suffix_spelled_as_in_the_pattern_is_preferred(tree):
    root = tree("images/a.jpg", "masks/a.png", "masks/a.PNG")
    assert files(Paired("images/*", "masks/*.png"), root) == [("images/a.jpg", "masks/a.png")]


@pytest.mark.parametrize("name", ["two words", "日本", "a+b(1)"])
def test_names_of_all_kinds(tree, name):
    root = tree(f"{name}/i/{name}.jpg", f"{name}/m/{name}.png")
    assert files(Paired("*/i/*", "*/m/*"), root) == [(f"{name}/i/{name}.jpg", f"{name}/m/{name}.png")]


@pytest.mark.parametrize("forms", [("NFC", "NFD"), ("NFD", "NFC")])
def test_image_and_mask_in_two_unicode_spellings_belong_together(tree, forms):
    image, mask = (unicodedata.normalize(form, "é") for form in forms)
    root = tree(f"i/{image}.jpg", f"m/{mask}.png")
    assert files(Paired("i/*", "m/*.png"), root) == [(f"i/{image}.jpg", f"m/{mask}.png")]

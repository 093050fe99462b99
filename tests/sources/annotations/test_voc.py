"""Pascal VOC folders, written with `xml.etree` and Pillow, built and loaded."""

from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from tests.sources.building import built, check_rejected, fields_of, folder, picture
from tfprep import sources
from tfprep.errors import SourceError


def xml(objects, size=(40, 56)):
    """VOC's XML. An object is (name, xmin, ymin, xmax, ymax, difficult); numbers count pixels from 1."""
    root = ElementTree.Element("annotation")
    ElementTree.SubElement(root, "filename").text = "stale.jpg"
    if size:
        of_image = ElementTree.SubElement(root, "size")
        for side, pixels in zip(("width", "height", "depth"), (size[1], size[0], 3), strict=True):
            ElementTree.SubElement(of_image, side).text = str(pixels)
    for name, *box, difficult in objects:
        one = ElementTree.SubElement(root, "object")
        if name is not None:
            ElementTree.SubElement(one, "name").text = name
        ElementTree.SubElement(one, "difficult").text = str(difficult)
        corners = ElementTree.SubElement(one, "bndbox") if box else None
        for side, value in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=False):
            ElementTree.SubElement(corners, side).text = str(value)
    return ElementTree.tostring(root)


def palette_png(path, numbers):
    image = Image.fromarray(numbers, "P")
    image.putpalette([value for number in range(256) for value in (number, 255 - number, number // 2)])
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


@pytest.fixture
def voc(tmp_path):
    objects = {
        "one": [("cat", 11, 6, 30, 25, 1), ("aeroplane", 1, 1, 56, 5, 0)],
        "two": [("dog", 3.5, 4.5, 20, 21, 0)],
        "three": [],
        "orphan": [("cat", 1, 1, 5, 5, 0)],
    }
    photos = {f"JPEGImages/{name}.png": number for number, name in enumerate(("one", "two", "three", "bare"))}
    root = folder(tmp_path / "VOC2012", photos | {f"Annotations/{name}.xml": xml(one) for name, one in objects.items()})
    (root / "ImageSets/Main").mkdir(parents=True)
    return root


def test_boxes_begin_at_the_first_pixel_and_hold_the_last_one(voc, tmp_path):
    fields = fields_of(sources.Voc(fields=("boxes", "box_labels", "box_numbers", "difficult")), voc, tmp_path / "out")
    one = fields["JPEGImages/one.png"]
    np.testing.assert_array_equal(one["boxes"], [[10, 5, 30, 25], [0, 0, 56, 5]])  # 20 x 20 pixels; the whole width
    assert (one["box_labels"].tolist(), one["difficult"].tolist()) == ([1, 0], [1, 0])  # cat, aeroplane
    np.testing.assert_array_equal(one["image"], picture(0))
    np.testing.assert_array_equal(fields["JPEGImages/two.png"]["boxes"], [[2.5, 3.5, 20, 21]])
    assert fields["JPEGImages/three.png"]["boxes"].shape == fields["JPEGImages/bare.png"]["boxes"].shape == (0, 4)
    listing = sources.Voc().scan(voc)
    assert len(list(listing.entries)) == 4
    assert listing.tally["annotations without their image"] == 1


def test_classes_are_the_names_that_occur_and_with_masks_those_of_their_numbers(voc):
    assert sources.Voc().scan(voc).classes["box_labels"] == ("aeroplane", "cat", "dog")
    of_masks = sources.Voc(fields=("mask", "box_labels"))
    assert of_masks.scan(voc).classes["box_labels"][:2] == ("aeroplane", "bicycle")
    (voc / "Annotations/two.xml").write_bytes(xml([("a whale", 3, 4, 20, 21, 0)]))
    assert sources.Voc().scan(voc).classes["box_labels"] == ("a whale", "aeroplane", "cat")
    with pytest.raises(SourceError, match=r"a whale are not among VOC's 20 classes.*give classes in the order"):
        of_masks.scan(voc)
    listing = sources.Voc(classes=("cat",)).scan(voc)
    assert sum(len(entry.values[0]["objects"]) for entry in listing.entries) == 1
    assert listing.tally["object of a class that is not among the classes"] == 2


def test_lists_of_images_give_the_splits(voc, tmp_path):
    (voc / "ImageSets/Main/train.txt").write_text("one\nthree \n\n")
    (voc / "ImageSets/Main/val.txt").write_text("two\nabsent\n")
    (voc / "ImageSets/Main/trainval.txt").write_text("one\ntwo\n")
    source = sources.Voc(sets="ImageSets/Main/{split}.txt", splits=("train", "val"))
    fields, rejected = built(source, voc, tmp_path / "out")
    assert {key: row["split"] for key, row in fields.items()} == {
        "JPEGImages/one.png": "train", "JPEGImages/three.png": "train", "JPEGImages/two.png": "val",
    }  # fmt: skip
    assert "No such file" in rejected["JPEGImages/absent.*"]
    with pytest.raises(SourceError, match=r"no list fits 'ImageSets/Main/\{split\}_x\.txt'"):
        list(sources.Voc(sets="ImageSets/Main/{split}_x.txt").scan(voc).entries)
    for line in ("/etc/one", "../../one"):
        (voc / "ImageSets/Main/train.txt").write_text(f"{line}\n")
        with pytest.raises(SourceError, match=r"Main/train\.txt: expected a path relative to the data's root"):
            list(source.scan(voc).entries)


def test_masks_with_palettes_are_read_by_their_numbers(voc, tmp_path):
    instances = np.zeros((40, 56), np.uint8)
    instances[0:5] = 2
    instances[5:25, 10:30] = 1
    instances[4:6, 9:31] = 255
    classes = np.array([0, 8, 1] + [255] * 253, np.uint8)[instances]
    palette_png(voc / "SegmentationObject/one.png", instances)
    palette_png(voc / "SegmentationClass/one.png", classes)
    (voc / "ImageSets/Main/train.txt").write_text("one\n")
    sets = {"sets": "ImageSets/Main/{split}.txt", "splits": ("train",)}
    source = sources.Voc(**sets, fields=("boxes", "box_numbers", "instances", "mask"))
    fields = fields_of(source, voc, tmp_path / "out", fill={"mask": 255})
    row = fields["JPEGImages/one.png"]
    np.testing.assert_array_equal(row["instances"], instances)
    np.testing.assert_array_equal(row["mask"], classes)
    assert row["box_numbers"].tolist() == [1, 2]


def test_what_is_wrong_with_a_file_rejects_its_image(tmp_path):
    right = ("cat", 3, 4, 20, 21, 0)
    contents = {
        "cut": (xml([right])[:-20], "Annotations/cut.xml is not whole XML"),
        "empty": (b"", "is not whole XML"),
        "nameless": (xml([right, (None, 3, 4, 20, 21, 0)]), "Annotations/nameless.xml: object 2 has no class"),
        "boxless": (xml([("cat", 0)]), "object 1 has no bndbox"),
        "words": (xml([("cat", "a", 4, 20, 21, 0)]), "object 1 has no bndbox"),
        "negative": (xml([("cat", 20, 4, 3, 21, 0)]), "object 1: its box [19, 3, 3, 21] covers no pixel"),
        "flag": (xml([("cat", 3, 4, 20, 21, True)]), "object 1: difficult is 0 or 1; got 'True'"),
        "far": (xml([("cat", 3, 4, 90, 21, 0)]), "reaches outside the image of 56 x 40"),
        "other": (xml([right], (50, 60)), "the annotations are for an image of 60 x 50, this one is 56 x 40"),
        "turned": (xml([right], (56, 40)), "the annotations are for an image of 40 x 56, this one is 56 x 40"),
        "sizeless": (xml([right], None), ""),
        "good": (xml([right]), ""),
    }
    files = {f"Annotations/{name}.xml": content for name, (content, _) in contents.items()}
    root = folder(tmp_path / "data", {**files, **{f"JPEGImages/{name}.png": 1 for name in contents}})
    reasons = {f"JPEGImages/{name}.png": reason for name, (_, reason) in contents.items()}
    fields = ("boxes", "box_labels", "difficult")
    check_rejected(sources.Voc(fields=fields, bad_annotations="reject"), root, tmp_path / "out", reasons)

"""LabelMe's files, built and loaded, compared with what was written."""

import json

import numpy as np
import pytest

from tests.sources.building import check_rejected, fields_of, folder
from tfprep import sources
from tfprep.errors import RecipeError

masks = pytest.importorskip("pycocotools.mask")
SIZE = 40, 56
SQUARE = [[4, 5], [14, 5], [14, 15], [4, 15]]


def shape(label, points, kind="polygon", group=None):
    return {"label": label, "points": points, "shape_type": kind, "group_id": group, "flags": {}}


def labelme(*shapes, path="x.png", size=SIZE, **more):
    return {
        "version": "5.4.1", "shapes": list(shapes), "imagePath": path, "imageHeight": size[0], "imageWidth": size[1],
        **more,
    }  # fmt: skip


def written(root, contents):
    """Images with these annotations by name: a text, what is written as JSON, or None."""
    texts = {
        f"{name}.json": one if isinstance(one, str) else json.dumps(one)
        for name, one in contents.items()
        if one is not None
    }
    return folder(root, {f"{name}.png": number for number, name in enumerate(contents)} | texts)


def test_polygons_rectangles_and_groups(tmp_path):
    far = [[30, 5], [40, 5], [40, 15], [30, 15]]
    one = labelme(
        shape("cat", SQUARE, group=1), shape("cat ", far, group=1), shape("dog", [[50, 38], [45, 20]], "rectangle"),
        shape("ant", [[1, 1], [9, 9]], "line"), path="..\\a\\one.png",
    )  # fmt: skip
    root = written(tmp_path / "data", {"one": one, "bare": None})
    (root / "lost.json").write_text(json.dumps(labelme(path="lost.png")))
    source = sources.LabelMe(fields=("boxes", "box_labels", "instances", "mask"))
    fields = fields_of(source, root, tmp_path / "out")
    row = fields["one.png"]
    np.testing.assert_allclose(row["boxes"], [[4, 5, 40, 15], [45, 20, 50, 38]])
    assert row["box_labels"].tolist() == [0, 1]
    parts = masks.merge(masks.frPyObjects([np.ravel(SQUARE).tolist(), np.ravel(far).tolist()], *SIZE))
    np.testing.assert_array_equal(row["instances"] == 1, masks.decode(parts))
    assert set(np.unique(row["mask"])) == {0, 1, 2}
    assert len(fields["bare.png"]["boxes"]) == 0
    listing = source.scan(root)
    assert len(list(listing.entries)) == 2
    assert listing.classes["mask"] == ("background", "cat", "dog")
    assert listing.tally == {
        "shape of the type 'line', which is not a region": 1,
        "annotations without their image": 1,
        "image without a file of annotations, kept as one without objects": 1,
    }


def test_what_is_wrong_with_a_file_rejects_its_image(tmp_path):
    contents = {
        "cut": ('{"shapes": [', "cut.json is not whole JSON"),
        "list": ("[]", "no list of shapes"),
        "other": (labelme(path="a/somewhere.png"), "is about the image 'a/somewhere.png'"),
        "nameless": (labelme(shape("", SQUARE)), "nameless.json: shape 0 has no class"),
        "number": (labelme(shape([1], SQUARE)), "number.json: shape 0 has no class"),
        "tab": (labelme(shape("a\tb", SQUARE)), "tab.json: shape 0: a class name has no spaces around it"),
        "two": (labelme(shape("cat", SQUARE[:2])), "shape 0: a polygon is three points or more; it has 2"),
        "words": (labelme(shape("cat", [["a", 1], [2, 3], [4, 5]])), "shape 0: a polygon is three points"),
        "circle": (labelme(shape("cat", SQUARE[:2], "circle")), "shape 0: the type 'circle' is not read"),
        # Its pixels would be background in a mask, although the other shape is read.
        "both": (
            labelme(shape("cat", SQUARE), shape("dog", SQUARE[:2], "circle")),
            "shape 1: the type 'circle' is not read",
        ),
        "group": (labelme(shape("cat", SQUARE, group=[1])), "shape 0: a group_id is a number or null; got [1]"),
        "outside": (labelme(shape("cat", [[-9, 5], [14, 5], [14, 15]])), "reaches outside the image"),
        "size": (labelme(size=(41, 56)), "the annotations are for an image of 56 x 41"),
        "good": (labelme(shape("cat", SQUARE)), ""),
    }
    for name, (content, _) in contents.items():
        if isinstance(content, dict) and name != "other":
            content["imagePath"] = f"{name}.png"
    root = written(tmp_path / "data", {name: content for name, (content, _) in contents.items()})
    reasons = {f"{name}.png": reason for name, (_, reason) in contents.items()}
    check_rejected(sources.LabelMe(), root, tmp_path / "out", reasons)


SOURCES = (sources.Coco, sources.Voc, sources.Yolo, sources.LabelMe)


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_of_annotations_takes_pixels(source):
    assert "image" in source(pixels={"image": sources.Pixels()}).decoders()
    with pytest.raises(RecipeError, match=rf"{source.__name__}: pixels=\{{'boxes': ...\}} names no image"):
        source(pixels={"boxes": sources.Pixels()})

"""COCO files, built and loaded, compared with what pycocotools reads in the same files."""

import json
import re

import cv2
import numpy as np
import pytest
from PIL import Image

from tests.photos import oriented
from tests.sources.building import built, fields_of, picture, write_picture
from tfprep import augment, codecs, sources
from tfprep.errors import BuildError, RecipeError, SourceError
from tfprep.recipe import Recipe

masks = pytest.importorskip("pycocotools.mask")
coco_api = pytest.importorskip("pycocotools.coco")

SIZE = 40, 56
ALL = ("boxes", "box_labels", "box_numbers", "instances", "mask")
CATEGORIES = [{"id": 7, "name": "cat"}, {"id": 3, "name": "dog"}, {"id": 90, "name": "zebra"}]


def region(x, y, width, height):
    pixels = np.zeros(SIZE, np.uint8)
    pixels[y : y + height, x : x + width] = 1
    return pixels


def rle(pixels):
    packed = masks.encode(np.asfortranarray(pixels))
    return {"size": list(packed["size"]), "counts": packed["counts"].decode()}


def polygon(x, y, width, height):
    return [[x, y, x + width, y, x + width, y + height, x, y + height]]


def annotation(number, image, category, box, segmentation, crowd=0):
    made = {"id": number, "image_id": image, "category_id": category, "bbox": list(box), "iscrowd": crowd}
    return {**made, "segmentation": segmentation, "area": box[2] * box[3]}


def runs(pixels):
    """Uncompressed RLE, as COCO writes crowds: runs of 0 and 1 in turn, column by column."""
    flat = pixels.ravel(order="F")
    edges = np.flatnonzero(np.diff(flat)) + 1
    counts = np.diff([0, *edges.tolist(), flat.size]).tolist()
    return {"size": list(SIZE), "counts": [0, *counts] if flat[0] else counts}


def scene():
    """Two images with objects and one without: a small object in front of a large one, a crowd, polygons, both kinds of RLE."""
    images = [{"id": n, "file_name": f"{n}.png", "height": SIZE[0], "width": SIZE[1]} for n in (1, 2, 3)]
    circle = cv2.circle(np.zeros(SIZE, np.uint8), (30, 20), 9, 1, -1)
    annotations = [
        annotation(11, 1, 7, (14, 12, 6, 7), polygon(14, 12, 6, 7)),
        annotation(12, 1, 3, (10.25, 8.5, 20, 22.5), polygon(10.25, 8.5, 20, 22.5)),
        annotation(13, 1, 3, (0, 0, 56, 12), runs(region(0, 0, 56, 12)), crowd=1),
        annotation(14, 2, 90, (21, 11, 19, 19), rle(circle)),
        annotation(15, 2, 7, (2, 3, 12, 30), [polygon(2, 3, 12, 5)[0], polygon(2, 20, 12, 13)[0]]),
    ]
    return {"info": {"x": [1, [2]]}, "images": images, "annotations": annotations, "categories": CATEGORIES}


def written(tmp_path, content, split="train"):
    root = tmp_path / "data"
    for image in content["images"]:
        write_picture(root / split / image["file_name"], image["id"])
    path = root / "annotations" / f"instances_{split}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content), "utf-8")
    return root, path


def test_all_fields_are_those_of_pycocotools(tmp_path):
    root, path = written(tmp_path, scene())
    source = sources.Coco(fields=ALL)
    fields = fields_of(source, root, tmp_path / "out", fill={"mask": 255})
    reference = coco_api.COCO(str(path))
    ids = sorted(reference.getCatIds())
    for number in (1, 2, 3):
        row = fields[f"train/{number}.png"]
        np.testing.assert_array_equal(row["image"], picture(number))
        found = reference.loadAnns(reference.getAnnIds(imgIds=[number], iscrowd=False))
        corners = [[x, y, x + w, y + h] for x, y, w, h in (one["bbox"] for one in found)]
        np.testing.assert_allclose(row["boxes"], np.reshape(corners, (-1, 4)))
        assert row["box_labels"].tolist() == [ids.index(one["category_id"]) for one in found]
        assert row["box_numbers"].tolist() == list(range(1, len(found) + 1))
        instances, mask = np.zeros(SIZE, int), np.zeros(SIZE, int)
        for one in reference.loadAnns(reference.getAnnIds(imgIds=[number], iscrowd=True)):
            instances[reference.annToMask(one) > 0] = mask[reference.annToMask(one) > 0] = 255
        for place in sorted(range(len(found)), key=lambda n: -int(reference.annToMask(found[n]).sum())):
            instances[reference.annToMask(found[place]) > 0] = place + 1
            mask[reference.annToMask(found[place]) > 0] = ids.index(found[place]["category_id"]) + 1
        np.testing.assert_array_equal(row["instances"], instances)
        np.testing.assert_array_equal(row["mask"], mask)
    assert (fields["train/1.png"]["instances"] == 1).sum() == 42  # the small object is in front


def test_class_names_and_masks_have_the_numbers_of_the_fields(tmp_path):
    root, _ = written(tmp_path, scene())
    listing = sources.Coco(fields=ALL).scan(root)
    assert listing.classes == {"box_labels": ("dog", "cat", "zebra"), "mask": ("background", "dog", "cat", "zebra")}
    taken = sources.Coco(classes=("zebra",)).scan(root)
    rows = list(taken.entries)
    assert [len(entry.values[0]["objects"]) for entry in rows] == [0, 1, 0]
    assert taken.tally == {"object of a class that is not among the classes": 4}
    kept, skipped = (sources.Coco(unannotated=name).scan(root).entries for name in ("keep", "skip"))
    assert (len(list(kept)), [entry.key for entry in skipped]) == (3, ["train/1.png", "train/2.png"])


SHAPES = [
    ([[1, 2, 3, 4]], "a polygon is three points or more"),
    ([[1, 2, 3, 4, 5, 6, 7]], "a polygon is three points or more"),
    ([], "a segmentation is a list of polygons"),
    ({"size": [9, 9], "counts": [81]}, "its RLE is of size [9, 9]"),
    ({"size": list(SIZE), "counts": [10, 20]}, "its RLE has 30 pixels"),
    ({"size": list(SIZE), "counts": [-10, 2250]}, "its RLE has"),
    ({"size": list(SIZE), "counts": "PP"}, "its RLE ends in the middle"),
    ({"size": list(SIZE), "counts": "\x07"}, "is not a character of an RLE"),
    ({"size": list(SIZE), "counts": "11"}, "its RLE has 2 pixels"),
    ({"size": list(SIZE), "counts": {}}, "an RLE's counts are a list or text"),
    ({"size": None, "counts": [81]}, "its RLE is of size None"),
]
BOXES = [
    ([14, 12, -6, 7], "its box [14, 12, 8, 19] covers no pixel"),
    ([14, 12, 6, 0], "its box [14, 12, 20, 12] covers no pixel"),
    ([-14, 12, 20, 9], "its box [-14, 12, 6, 21] reaches outside the image"),
    ([60, 12, 5, 5], "reaches outside the image"),
    ([14, 12, 6], "a bbox is x, y, width and height"),
    (None, "a bbox is x, y, width and height"),
    ([float("nan"), 12, 6, 7], "holds NaN or infinity"),
]
CLASSES = [
    (5, "there is no category 5"),
    (None, "there is no category None"),
    (55, "category 55 has no name"),
    (56, "category 56 has no name"),
]


GOOD = {"bbox": [4, 5, 6, 7], "segmentation": polygon(4, 5, 6, 7), "category_id": 7}
ODD = [({**GOOD, "segmentation": value}, reason) for value, reason in SHAPES]
ODD += [({**GOOD, "bbox": value}, reason) for value, reason in BOXES]
ODD += [({**GOOD, "category_id": value}, reason) for value, reason in CLASSES]


def an_image_each(annotations):
    """The content of a file with an image for each of these lists of annotations."""
    images = [{"height": SIZE[0], "width": SIZE[1], "id": n, "file_name": f"{n}.png"} for n in range(len(annotations))]
    listed = [{"image_id": n, **one} for n, of_image in enumerate(annotations) for one in of_image]
    listed = [{"id": 100 + number, **one} for number, one in enumerate(listed)]
    return {"images": images, "annotations": listed, "categories": [*CATEGORIES, {"id": 55}, {"id": 56, "name": " "}]}


def test_a_wrong_annotation_rejects_its_image_and_is_named(tmp_path):
    """An image for each kind of mistake, and some that are right."""
    no_box = {"category_id": 7, "bbox": None}, "a bbox is x, y, width and height"
    crowd = {**GOOD, "iscrowd": "0"}, "iscrowd is 0 or 1; got '0'"
    odd = [*ODD, (GOOD, ""), ({**GOOD, "bbox": [-1, 0, 20, 9]}, ""), no_box, crowd, (GOOD, "image of 57 x 40")]
    content = an_image_each([[one] for one, _ in odd])
    content["images"][-1]["width"] = 57
    root, _ = written(tmp_path, content)
    source = sources.Coco(fields=("boxes", "box_labels", "instances"), bad_annotations="reject")
    fields, rejected = built(source, root, tmp_path / "out")
    for number, (_, reason) in enumerate(odd):
        key = f"train/{number}.png"
        if not reason:
            assert key in fields
            continue
        assert reason in rejected[key]
        assert f"annotation {100 + number}" in rejected[key] or "image of" in reason
    np.testing.assert_array_equal(fields[f"train/{len(ODD) + 1}.png"]["boxes"], [[0, 0, 19, 9]])  # cut by one pixel
    assert len(fields) == 2


def test_what_reaches_outside_may_be_cut(tmp_path):
    """Boxes on request; masks without boxes take what is inside of a polygon."""
    content = scene()
    content["annotations"] = [annotation(1, 1, 7, (-14, 30, 20, 90), polygon(-14, 30, 20, 90))]
    root, _ = written(tmp_path, content)
    fields = fields_of(sources.Coco(outside="cut"), root, tmp_path / "cut")
    np.testing.assert_array_equal(fields["train/1.png"]["boxes"], [[0, 30, 6, 40]])
    fields = fields_of(sources.Coco(fields=("mask",)), root, tmp_path / "mask")
    np.testing.assert_array_equal(fields["train/1.png"]["mask"], 2 * region(0, 30, 6, 10))
    far = [-99, -300, 75, 22, 300, 4000, -60, 50, 3, 20]  # slanted edges cross the edges of the image
    content["annotations"] = [annotation(1, 1, 7, (0, 0, 56, 40), [far, [1e308, -9, -1e308, -9, 3, -1e308]])]
    root, _ = written(tmp_path, content)
    fields = fields_of(sources.Coco(fields=("mask",)), root, tmp_path / "far")
    expected = masks.decode(masks.merge(masks.frPyObjects([far], *SIZE)))
    np.testing.assert_array_equal(fields["train/1.png"]["mask"], 2 * expected)
    content["annotations"] = [annotation(1, 1, 7, (-14, 30, 20, 90), polygon(-14, 30, 20, 90))]
    root, _ = written(tmp_path, content)
    _, rejected = built(sources.Coco(fields=("mask", "boxes")), root, tmp_path / "boxes")
    assert "its box [-14, 30, 6, 120] reaches outside the image of 56 x 40" in rejected["train/1.png"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"images": [', "line 1, column 13: the annotations are not whole JSON"),
        ('{"images": [],\n "annotations": [{"image_id": 1}, }]}', "line 2"),
        ('{"images": []}', "no annotations; is this a COCO file?"),
        ('{"images": [{"id": [1]}], "annotations": []}', "images[0] has no 'id', a whole number of 64 bits"),
        ('{"images": [{"id": 1}, {"id": 1}], "annotations": []}', "two images have one id"),
        ('{"images": [{"id": 1}], "annotations": [{"image_id": 1, "caption": "a cat"}]}', "have 'caption'"),
        ('{"images": [{"id": 1}], "annotations": [], "categories": []}', "expected the file_name of an image"),
        ('{"images": [{"id": 1, "file_name": "../../x.png"}], "annotations": []}', "below it"),
        (f'{{"images": [{{"id": {1 << 63}}}], "annotations": []}}', "images[0] has no 'id', a whole number of 64 bits"),
        ('{"images": [], "annotations": [], "categories": [{"id": 1, "keypoints": 3}]}', "its keypoints are a list"),
        (
            '{"images": [], "annotations": []}\n{"images": []}',
            "line 2, column 1: the annotations are not whole JSON: there is more after its end",
        ),
        ("[1]", "expected '{'"),
        ("[" * 100_000, "expected '{'"),
        ('{"x": ' + "[" * 100_000, "nested too deeply"),
    ],
)
def test_a_broken_file_is_named_with_its_line(tmp_path, content, reason):
    root, path = written(tmp_path, scene())
    path.write_text(content)
    with pytest.raises(SourceError, match=re.escape(reason)) as error:
        list(sources.Coco().scan(root).entries)
    assert str(path) in str(error.value)


def test_a_missing_image_is_rejected_and_annotations_of_unknown_images_are_counted(tmp_path):
    content = scene()
    content["annotations"][0]["image_id"] = 99
    root, _ = written(tmp_path, content)
    (root / "train/2.png").unlink()
    fields, rejected = built(sources.Coco(), root, tmp_path / "out")
    assert set(fields) == {"train/1.png", "train/3.png"}
    assert "No such file" in rejected["train/2.png"]
    listing = sources.Coco().scan(root)
    assert len(list(listing.entries)) == 3
    assert listing.tally == {"annotation of an image that the file does not list": 1}


def test_key_points_are_pixel_indices_and_keep_their_rows_under_a_flip(tmp_path):
    content = scene()
    content["categories"] = [{"id": 7, "name": "person", "keypoints": ["nose", "left", "right"]}]
    content["annotations"] = [
        {**annotation(11, 1, 7, (2, 2, 30, 30), []), "keypoints": [5, 6, 2, 7, 8, 1, 0, 0, 0]},
        {**annotation(12, 1, 7, (20, 9, 20, 20), []), "keypoints": [25, 16, 2, 27, 18, 2, 23, 12, 1]},
    ]
    root, _ = written(tmp_path, content)
    source = sources.Coco(fields=("boxes", "box_labels", "points"))
    fields = fields_of(source, root, tmp_path / "out")
    expected = [[5.5, 6.5, 2], [7.5, 8.5, 1], [0, 0, 0], [25.5, 16.5, 2], [27.5, 18.5, 2], [23.5, 12.5, 1]]
    np.testing.assert_allclose(fields["train/1.png"]["points"], expected)
    assert fields["train/2.png"]["points"].shape == (0, 3)
    cropped = fields_of(
        source, root, tmp_path / "cropped", geometry=[augment.Crop(20, 20)], min_visible=0.7,
        row_fields={"boxes": ["box_labels", "points"]},
    )  # fmt: skip
    # The center crop begins at (18, 10): 0.33 of the first box is left, 0.85 of the second.
    np.testing.assert_allclose(cropped["train/1.png"]["boxes"], [[2, 0, 20, 19]])
    np.testing.assert_allclose(cropped["train/1.png"]["points"][:, 0], [7.5, 9.5, 5.5])
    # Rows of points belong to boxes by their places: objects of a class without points have as many, none of them labeled.
    content["categories"] += [{"id": 8, "name": "car"}, {"id": 9, "name": "dog", "keypoints": ["nose"]}]
    content["annotations"].insert(1, annotation(13, 1, 8, (1, 1, 9, 9), []))
    root, _ = written(tmp_path, content)
    with pytest.raises(
        SourceError, match=r"points need classes of one number of key points; these have 1, 3\. .*classes="
    ):
        source.scan(root)
    with_cars = sources.Coco(fields=source.fields, classes=("person", "car"))
    fields = fields_of(with_cars, root, tmp_path / "cars")
    np.testing.assert_array_equal(fields["train/1.png"]["box_labels"], [0, 1, 0])
    np.testing.assert_allclose(fields["train/1.png"]["points"], [*expected[:3], *np.zeros((3, 3)), *expected[3:]])
    with pytest.raises(SourceError, match="these have none"):
        sources.Coco(fields=source.fields, classes=("car",)).scan(root)


@pytest.mark.parametrize(
    ("points", "reason"),
    [
        ([5, 6], "its category has 3 key points of 3 numbers; got 2"),
        ([float("nan"), 6, 2] * 3, "holds NaN or infinity"),
    ],
)
def test_wrong_key_points_reject_their_image(tmp_path, points, reason):
    content = scene()
    content["categories"] = [{"id": 7, "name": "person", "keypoints": ["nose", "left", "right"]}]
    content["annotations"] = [{**annotation(11, 1, 7, (2, 2, 30, 30), []), "keypoints": points}]
    root, _ = written(tmp_path, content)
    _, rejected = built(sources.Coco(fields=("boxes", "points"), bad_annotations="reject"), root, tmp_path / "out")
    assert "annotation 11: " in rejected["train/1.png"]
    assert reason in rejected["train/1.png"]


def test_boxes_outside_of_a_crop_are_dropped_with_their_rows(tmp_path):
    """Without `row_fields`; which boxes these are is in tests/fidelity."""
    root, _ = written(tmp_path, scene())
    fields = ("boxes", "box_labels", "box_numbers", "instances")
    cropped = fields_of(sources.Coco(fields=fields), root, tmp_path / "out", geometry=[augment.CenterCrop(10, 8)])
    found = {
        key: (len(row["boxes"]), row["box_labels"].tolist(), row["box_numbers"].tolist())
        for key, row in cropped.items()
    }
    # The crop shows columns 24 to 32 and rows 15 to 25; dog and zebra are classes 0 and 2.
    assert found == {"train/1.png": (1, [0], [2]), "train/2.png": (1, [2], [1]), "train/3.png": (0, [], [])}
    source, crop = sources.Coco(fields=("boxes", "instances")), [augment.CenterCrop(10, 8)]
    with pytest.raises(RecipeError, match=r"store: 'instances' numbers objects by the places .* add 'box_numbers'"):
        built(source, root, tmp_path / "refused", geometry=crop)
    whole = [augment.Resize(longer=30, pad=True), augment.Flip()]
    built(source, root, tmp_path / "whole", geometry=whole, variants={"train": 2})


def test_the_fingerprint_covers_how_objects_become_fields():
    def fingerprint(**options):
        source = sources.Coco(fields=("instances",), **options)
        return Recipe(name="a", source=source, store={"instances": codecs.Png()}).fingerprint("train")

    assert fingerprint() == fingerprint(unannotated="skip")  # which images there are shows in the samples
    assert fingerprint() != fingerprint(void=200)
    assert fingerprint() != fingerprint(outside="cut")


def test_a_wrong_annotation_is_dropped_and_listed(tmp_path):
    """Its neighbors keep their boxes, labels, numbers and regions; an image without anything left is rejected."""
    right = {"bbox": [20, 21, 9, 8], "segmentation": polygon(20, 21, 9, 8), "category_id": 3}
    odd = [one for one, _ in ODD if one["bbox"] != [-14, 12, 20, 9]]  # which is partly inside: its image is rejected
    root, _ = written(tmp_path, an_image_each([[odd[0]], *([GOOD, wrong, right] for wrong in odd[1:])]))
    source = sources.Coco(fields=("boxes", "box_labels", "box_numbers", "instances", "mask"))
    with pytest.warns(UserWarning, match=f"{len(odd) - 1} samples have warnings, such as .* dropped annotations"):
        fields, rejected = built(source, root, tmp_path / "out")
    assert list(rejected) == ["train/0.png"]
    page = (tmp_path / "out/current/report.html").read_text()
    for number in range(1, len(odd)):
        one = fields[f"train/{number}.png"]
        assert one["boxes"].tolist() == [[4, 5, 10, 12], [20, 21, 29, 29]]
        assert one["box_labels"].tolist() == [1, 0]
        assert one["box_numbers"].tolist() == [1, 2]
        expected = region(4, 5, 6, 7) + 2 * region(20, 21, 9, 8)
        np.testing.assert_array_equal(one["instances"], expected)
        np.testing.assert_array_equal(one["mask"], np.array([0, 2, 1])[expected])
        assert f"train/{number}.png: " in page
    assert page.count("the annotation was dropped") == len(odd) - 1


@pytest.mark.parametrize(("orientation", "size"), [(6, SIZE), (3, SIZE), (8, (40, 40))])
def test_boxes_that_were_drawn_on_stored_pixels(tmp_path, orientation, size):
    """A quarter turn is rejected, and all turned images are counted, with the option that ignores EXIF in both messages."""
    one = {"id": 1, "file_name": "1.png", "height": float(size[0]), "width": size[1]}
    content = scene() | {"images": [one], "annotations": [annotation(1, 1, 7, (3, 5, 8, 9), polygon(3, 5, 8, 9))]}
    root, _ = written(tmp_path, content)
    stored = picture(3, *size)
    Image.fromarray(stored).save(root / "train/1.png", exif=oriented(orientation).tobytes())
    if orientation == 6:
        with pytest.raises(BuildError, match=r"pixels=\{'image': sources.Pixels\(exif=\"ignore\", background"):
            built(sources.Coco(), root, tmp_path / "out")
    else:
        with pytest.warns(UserWarning, match=r"1 images were turned upright .*: sources.Pixels\(exif='ignore'\)"):
            built(sources.Coco(), root, tmp_path / "out")
        assert "1 images were turned upright by their EXIF" in (tmp_path / "out/current/report.html").read_text()
    pixels = {"image": sources.Pixels(exif="ignore", background=(255, 255, 255))}
    fields = fields_of(sources.Coco(pixels=pixels), root, tmp_path / "kept")
    np.testing.assert_array_equal(fields["train/1.png"]["image"], stored)
    np.testing.assert_array_equal(fields["train/1.png"]["boxes"], [[3, 5, 11, 14]])
    assert "EXIF" not in (tmp_path / "kept/current/report.html").read_text()

"""The recipes for annotations and DICOM build small data of their layout, and a trainer gets the targets that they promise."""

import json
import textwrap
from pathlib import Path

import numpy as np
import pytest

import tfprep
from tests.photos import save
from tests.sources.building import folder, read_rejected, write_picture
from tfprep.builder import BuildOptions
from tfprep.dataset import open_dataset

PIPELINES = Path(__file__).parents[2] / "pipelines"


@pytest.fixture(scope="module")
def coco(tmp_path_factory):
    """COCO's layout: in each split three images of 120 x 90 with two squares, one without annotations."""
    root = tmp_path_factory.mktemp("coco")
    (root / "annotations").mkdir()
    for split in ("train", "val"):
        images = [{"id": n, "file_name": f"{n}.png", "height": 90, "width": 120} for n in range(4)]
        annotations = []
        for n in range(3):
            for place, x in enumerate((10, 70)):
                polygon = [[x, 20, x + 40, 20, x + 40, 60, x, 60]]
                one = {
                    "id": 10 * n + place, "image_id": n, "category_id": 1 + place, "bbox": [x, 20, 40, 40],
                    "iscrowd": 0,
                }  # fmt: skip
                annotations.append({**one, "segmentation": polygon})
        categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
        content = {"images": images, "annotations": annotations, "categories": categories}
        (root / f"annotations/instances_{split}2017.json").write_text(json.dumps(content))
        for n in range(4):
            write_picture(root / f"{split}2017/{n}.png", n, 90, 120)
    return root


def build(name, root, out):
    tfprep.build(PIPELINES / f"{name}.py", out, data=root, options=BuildOptions(workers=0))
    assert not read_rejected(out)


def test_a_keras_detector_gets_relative_boxes_with_padding(coco, tmp_path, monkeypatch):
    pytest.importorskip("tensorflow")
    build("coco_detection", coco, tmp_path / "out")
    text = (
        (PIPELINES / "coco_detection.py").read_text().partition('"""\n\nfrom')[0].replace("out/coco_detection", "out")
    )
    code = text[text.index("    def targets") :].replace('"train", batch_size=16', '"val", batch_size=4')
    names = {"tfprep": tfprep}
    monkeypatch.chdir(tmp_path)
    exec(textwrap.dedent(code), names)
    images, objects = next(iter(names["train"]))
    boxes, labels = objects["boxes"].numpy(), objects["labels"].numpy()
    keys = open_dataset("out").index("val", columns=["key"])["key"].to_pylist()
    assert (boxes.shape, labels.shape, images.shape) == ((4, 100, 4), (4, 100), (4, 640, 640, 3))
    scale = 16 / 3  # 120 x 90 becomes 640 x 480, with 80 rows of padding above
    corners = [[80 + 20 * scale, x * scale, 80 + 60 * scale, (x + 40) * scale] for x in (10, 70)]
    for key, of_image, names in zip(keys, boxes, labels, strict=True):
        count = 0 if key == "val2017/3.png" else 2
        np.testing.assert_allclose(of_image[:count], np.array(corners[:count]).reshape(-1, 4) / 640, atol=1e-5)
        assert (of_image[count:] == -1).all()
        assert names[: count + 1].tolist() == [*[0, 1][:count], -1]


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
def test_clicks_are_on_one_object(coco, tmp_path):
    pytest.importorskip("pycocotools")
    build("coco_clicks", coco, tmp_path / "out")
    data = open_dataset(tmp_path / "out")
    made = list(data.samples("val"))
    assert len(made) == 3  # the image without annotations is left out
    for sample in made:
        chosen = sample["object"] == 1
        assert chosen.sum() > 10_000
        assert (sample["object"] == 2).sum() > 0
        assert chosen[sample["clicks"][:, :, 0] == 0].all()


def test_slices_keep_more_than_eight_bits(tmp_path):
    pytest.importorskip("pydicom")
    from tests.sources.test_pixels import dicom

    root = tmp_path / "ct"
    values = np.arange(64 * 64).reshape(64, 64).astype(np.uint16)
    for n in range(8):
        folder(root, {f"slices/p{n // 2}/{n}.dcm": dicom(values, slope=(1, -1024), patient=f"p{n // 2}")})
        save(root / f"masks/p{n // 2}/{n}.png", np.random.default_rng(n).integers(0, 2, (64, 64)).astype(np.uint8))
    build("ct_slices", root, tmp_path / "out")
    data = open_dataset(tmp_path / "out")
    image = next(iter(data.samples(next(iter(data.splits)))))["image"]
    assert (image.dtype, image.shape) == (np.uint16, (256, 256, 1))
    assert len(np.unique(image)) > 300  # the window holds 400 units

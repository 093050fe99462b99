"""Which source is chosen for which layout, and its description."""

import json
import os
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from tfprep import sources
from tfprep.errors import SourceError
from tfprep.sources import Folder, Fractions, Paired, Table
from tfprep.sources.detection import pairs
from tfprep.sources.detection.detect import detect

EIGHTY_TWENTY = Fractions(train=0.8, val=0.2)
BY_CLASS = Fractions(train=0.8, val=0.2, stratify="label")


def pictures(root: Path, *paths: str, size: tuple[int, int] = (6, 8), mask: tuple[int, ...] = (0, 1, 2)) -> Path:
    """Writes images: colors, or class numbers if the path contains a word for masks."""
    generator = np.random.default_rng(0)
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        is_mask = any(word in path.lower() for word in ("mask", "annot", "segmentation", "gt", "labels"))
        pixels = generator.choice(mask, size) if is_mask else generator.integers(0, 255, (*size, 3))
        assert cv2.imwrite(str(root / path), pixels.astype(np.uint8))
    return root


def both(image: str, mask: str, *names: str) -> list[str]:
    return [pattern.format(name) for name in names for pattern in (image, mask)]


LAYOUTS = [
    ("class folders", ["cat/1.jpg", "dog/2.jpg"], Folder(splits=BY_CLASS)),
    ("class folders, nested", ["cat/a/1.jpg", "cat/2.jpg", "dog/b/c/2.png"], Folder(splits=BY_CLASS)),
    (
        "class folders in a folder",
        ["pics/all/cat/1.jpg", "pics/all/dog/2.jpg"],
        Folder("pics/all/{label}/**", splits=BY_CLASS),
    ),
    ("split and class folders", ["train/cat/1.jpg", "train/dog/2.jpg", "val/cat/3.jpg"], Folder("{split}/{label}/**")),
    (
        "the same in a folder",
        ["set/training/cat/1.jpg", "set/training/dog/2.jpg", "set/test/cat/3.jpg"],
        Folder("set/{split}/{label}/**"),
    ),
    ("split folders", ["train/1.jpg", "train/2.jpg", "val/3.jpg"], Folder("{split}/**")),
    ("flat", ["1.jpg", "2.png"], Folder("**", splits=EIGHTY_TWENTY)),
    ("flat in a folder", ["images/1.jpg", "images/2.jpg"], Folder("images/**", splits=EIGHTY_TWENTY)),
    (
        "CamVid",
        [*both("train/{}.png", "trainannot/{}.png", "1", "2"), *both("val/{}.png", "valannot/{}.png", "1", "4")],
        Paired("{split}/*.png", "{split}annot/*.png"),
    ),
    (
        "images and masks",
        both("images/{}.jpg", "masks/{}.png", "1", "2"),
        Paired("images/*.jpg", "masks/*.png", splits=EIGHTY_TWENTY),
    ),
    (
        "masks below the images",
        [*both("{}.jpg", "masks/{}.png", "1", "2")],
        Paired("*.jpg", "masks/*.png", splits=EIGHTY_TWENTY),
    ),
    (
        "images of several suffixes",
        [*both("images/{}.jpg", "masks/{}.png", "1"), *both("images/{}.png", "masks/{}.png", "2")],
        Paired("images/*", "masks/*.png", splits=EIGHTY_TWENTY),
    ),
    (
        "kinds above splits",
        [*both("images/train/{}.jpg", "masks/train/{}.png", "1"), *both("images/val/{}.jpg", "masks/val/{}.png", "2")],
        Paired("images/{split}/*.jpg", "masks/{split}/*.png"),
    ),
    (
        "splits above kinds",
        [*both("train/img/{}.jpg", "train/gt/{}.png", "1"), *both("test/img/{}.jpg", "test/gt/{}.png", "2")],
        Paired("{split}/img/*.jpg", "{split}/gt/*.png"),
    ),
    (
        "Pascal VOC",
        [*both("JPEGImages/{}.jpg", "SegmentationClass/{}.png", "1", "2"), "JPEGImages/3.jpg"],
        Paired("JPEGImages/*.jpg", "SegmentationClass/*.png", splits=EIGHTY_TWENTY),
    ),
    (
        "folders of scenes below",
        [*both("rgb/s1/{}.jpg", "labels/s1/{}.png", "1"), *both("rgb/s2/{}.jpg", "labels/s2/{}.png", "2")],
        Paired("rgb/*/*.jpg", "labels/*/*.png", splits=EIGHTY_TWENTY),
    ),
    (
        "masks beside images",
        both("{}.jpg", "{}_mask.png", "1", "2"),
        Paired("*.jpg", "*_mask.png", splits=EIGHTY_TWENTY),
    ),
    (
        "masks beside images, by split",
        [*both("train/{}.png", "train/{}-gt.png", "1"), *both("val/{}.png", "val/{}-gt.png", "2")],
        Paired("{split}/*.png", "{split}/*-gt.png"),
    ),
    ("a class called labels", ["labels/1.jpg", "labels/2.jpg", "caps/1.jpg", "caps/2.jpg"], Folder(splits=BY_CLASS)),
]


@pytest.mark.parametrize(("name", "paths", "source"), LAYOUTS, ids=[name for name, *_ in LAYOUTS])
def test_layouts(tmp_path, name: str, paths: list[str], source: sources.Source) -> None:
    root = pictures(tmp_path, *paths)
    found = detect(root)
    assert found.source == source
    assert eval(repr(found.source), {"sources": sources}) == source
    images = [path for path in paths if isinstance(source, Folder) or "image" in listed_as(source, path)]
    assert sum(found.facts.splits.values()) == len(images)
    assert not found.facts.problems or name == "Pascal VOC"


def listed_as(source: Paired, path: str) -> str:
    """`image` or `mask`, by the words in the generated paths."""
    return (
        "mask" if any(word in path.lower() for word in ("mask", "annot", "segmentation", "gt", "labels")) else "image"
    )


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (
            [{"path": f"pics/{i}.jpg", "label": "ab"[i % 2], "split": "train"} for i in range(4)],
            Table("t.csv", "path", "label", splits="split"),
        ),
        (
            [{"name": f"{i}.jpg", "x": i + 0.5} for i in range(4)],
            Table("t.csv", "pics/{name}", fields={"scalar": ("scalar", "x")}, splits=EIGHTY_TWENTY),
        ),
        ([{"class": "x", "id": str(i)} for i in range(4)], Table("t.csv", "pics/{id}.jpg", "class", splits=BY_CLASS)),
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_table_next_to_images(tmp_path, rows: list[dict[str, object]], expected: Table, suffix: str) -> None:
    root = pictures(tmp_path, *(f"pics/{i}.jpg" for i in range(4)))
    if suffix == "csv":
        lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    else:
        lines = [json.dumps(row) for row in rows]
    (root / f"t.{suffix}").write_text("\n".join(lines) + "\n")
    found = detect(root)
    assert repr(found.source) == repr(expected).replace("t.csv", f"t.{suffix}")
    assert sum(found.facts.splits.values()) == 4


def test_a_table_per_split(tmp_path) -> None:
    root = pictures(tmp_path, "pics/0.jpg", "pics/1.jpg")
    (root / "train.csv").write_text("file,label\npics/0.jpg,a\n")
    (root / "val.csv").write_text("file,label\npics/1.jpg,b\n")
    assert detect(root).source == Table("{split}.csv", "file", "label")


def test_what_is_said_does_not_depend_on_the_order_of_sets(tmp_path):
    pictures(tmp_path, *(f"{split}/{label}/1.jpg" for split in ("valid", "train", "test") for label in ("cat", "dog")))
    code = "import sys; from tfprep.sources.detection.detect import *; print(detect(Path(sys.argv[1])).doubts)"
    said = {
        subprocess.run([sys.executable, "-c", code, tmp_path], env={**os.environ, "PYTHONHASHSEED": seed},
                       capture_output=True, text=True, check=True).stdout
        for seed in "01234"
    }  # fmt: skip
    assert said == {"('test/cat/ and test/dog/ hold files of the same names: are these classes, or images and what "
                    "belongs to them?',)\n"}  # fmt: skip


def test_one_image_of_ten_may_be_missing(tmp_path):
    pictures(tmp_path, *(f"pics/{n}.jpg" for n in range(9)))
    (tmp_path / "labels.csv").write_text("file,label\n" + "".join(f"{n}.jpg,{'ab'[n % 2]}\n" for n in range(10)))
    assert detect(tmp_path).source.image == "pics/{file}"


def test_folders_of_masks_are_not_compared_with_all_others_if_names_tell_their_images(tmp_path, monkeypatch):
    compared = []
    ending = pairs._mask_ending
    monkeypatch.setattr(pairs, "_mask_ending", lambda *args: compared.append(args) or ending(*args))
    pictures(tmp_path, *(f"{kind}/{n}/0.png" for n in range(20) for kind in ("JPEGImages", "Annotations")))
    assert detect(tmp_path).source.mask == "Annotations/*/*.png"
    assert 20 <= len(compared) <= 40


def test_masks_that_fit_the_images_of_several_folders_are_no_masks_of_either(tmp_path):
    for folder in ("rgb/s{}", "v2/semantic/gt/x{}"):
        pictures(tmp_path, *(f"{folder.format(part)}/{n}.png" for part in range(3) for n in range(2)))
    with pytest.raises(SourceError, match="nothing says how they belong together"):
        detect(tmp_path)
    pictures(tmp_path, *(f"v2/semantic/gt/s{part}/{n}.png" for part in range(3) for n in range(2)))
    assert detect(tmp_path).source.mask == "v2/semantic/gt/{part1}/*.png"


def test_a_table_that_names_no_images_is_ignored(tmp_path) -> None:
    root = pictures(tmp_path, "cat/1.jpg", "dog/2.jpg")
    (root / "notes.csv").write_text("who,when\nme,today\n")
    (root / "broken.parquet").write_text("not Parquet")
    assert detect(root).source == Folder(splits=BY_CLASS)


def test_the_description_of_a_source(tmp_path) -> None:
    root = pictures(tmp_path, *both("train/{}.png", "trainannot/{}.png", "1", "2"), mask=(0, 1, 2, 7))
    pictures(root, *both("val/{}.png", "valannot/{}.png", "3"), size=(20, 10), mask=(255,))
    (root / "val" / "notes.txt").write_text("x")
    assert detect(root).lines() == [
        "images {split}/*.png with masks {split}annot/*.png",
        "3 samples: train 2, val 1",
        "image files: .png 3",
        "image sizes, 3 opened: 8 x 6 to 10 x 20",
        "mask: class numbers 0-2, 7, 255 in the masks opened",
        "not an image by its suffix: 1",
        "unsure: this recipe does not read val/notes.txt",
    ]


def test_counts_by_class_and_what_cannot_be_opened(tmp_path) -> None:
    root = pictures(tmp_path, "cat/1.jpg", "cat/2.jpg", "dog/1.jpg")
    (root / "dog" / "3.jpg").write_text("no image")
    facts = detect(root).facts
    assert facts.labels == {"label": {"cat": 2, "dog": 2}}
    assert len(facts.problems) == 1
    assert facts.problems[0].startswith("dog/3.jpg: not a")


def test_a_folder_without_images(tmp_path) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(SourceError, match="no image below this folder"):
        detect(tmp_path)

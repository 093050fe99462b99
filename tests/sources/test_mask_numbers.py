"""Masks of other numbers or of colors, and the presets of public data sets."""

import cv2
import numpy as np

from tests.sources.building import built, write_picture
from tfprep import sources
from tfprep.sources.paired import CITYSCAPES_CLASSES

SIZE = 40, 56
COLORS = {(128, 64, 128): 3, (0, 0, 0): 255, (64, 0, 128): 300}


def write_mask(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), pixels[:, :, ::-1] if pixels.ndim == 3 else pixels)


def numbers(seed, values):
    return np.random.default_rng(seed).choice(np.array(values), SIZE)


def test_colors_become_numbers_and_an_unknown_color_is_a_reject(tmp_path):
    root = tmp_path / "data"
    chosen = {name: numbers(n, range(3)) for n, name in enumerate(("a", "odd", "jpeg"))}
    colors = np.array(list(COLORS), np.uint8)
    for n, (name, index) in enumerate(chosen.items()):
        write_picture(root / f"images/{name}.png", n)
        pixels = colors[index]
        pixels[3, 4] = (1, 2, 3) if name == "odd" else pixels[3, 4]
        write_mask(root / f"masks/{name}.{'jpg' if name == 'jpeg' else 'png'}", pixels)
    source = sources.Paired(image="images/*", mask="masks/*", palette=COLORS)
    fields, rejected = built(source, root, tmp_path / "out")
    expected = np.array(list(COLORS.values()))[chosen["a"]]
    np.testing.assert_array_equal(fields["images/a.png"]["mask"], expected)
    assert "the color (1, 2, 3) is not in the palette of 3 colors" in rejected["images/odd.png"]
    assert "its colors are not exact" in rejected["images/jpeg.png"]


def test_numbers_are_mapped_and_an_unknown_number_is_a_reject(tmp_path):
    root = tmp_path / "data"
    write_picture(root / "images/a.png", 1)
    stored = numbers(5, [0, 7, 9]).astype(np.uint16)
    write_mask(root / "masks/a.png", stored)
    paired = {"image": "images/*", "mask": "masks/*"}
    fields, _ = built(sources.Paired(**paired, numbers={0: 255, 7: 0, None: 1}), root, tmp_path / "out")
    made = fields["images/a.png"]["mask"]
    np.testing.assert_array_equal(made, np.select([stored == 0, stored == 7], [255, 0], 1))
    assert made.dtype == np.uint8
    write_picture(root / "images/b.png", 2)
    write_mask(root / "masks/b.png", np.zeros(SIZE, np.uint16))
    fields, rejected = built(sources.Paired(**paired, numbers={0: 255, 7: 0}), root, tmp_path / "strict")
    assert "the number 9 in the mask is not one of the 2 numbers that have a class" in rejected["images/a.png"]
    assert set(fields) == {"images/b.png"}


def test_cityscapes(tmp_path):
    """The ids and train ids of the benchmark's own table; these are some of them."""
    ids = {7: 0, 8: 1, 11: 2, 24: 11, 26: 13, 33: 18, 0: 255, 9: 255, 29: 255}
    root = tmp_path / "data"
    index = numbers(1, range(len(ids)))
    write_picture(root / "leftImg8bit/train/aachen/aachen_000000_000019_leftImg8bit.png", 1)
    write_mask(
        root / "gtFine/train/aachen/aachen_000000_000019_gtFine_labelIds.png", np.array(list(ids), np.uint8)[index]
    )
    write_mask(root / "gtFine/train/aachen/aachen_000000_000019_gtFine_instanceIds.png", np.zeros(SIZE, np.uint16))
    fields, rejected = built(sources.cityscapes(), root, tmp_path / "out", fill={"mask": 255})
    assert not rejected
    (row,) = fields.values()
    np.testing.assert_array_equal(row["mask"], np.array(list(ids.values()))[index])
    assert (CITYSCAPES_CLASSES[0], CITYSCAPES_CLASSES[13], row["split"]) == ("road", "car", "train")

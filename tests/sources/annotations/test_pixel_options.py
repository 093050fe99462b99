"""How images with annotations become pixels, where 8-bit RGB would lose something."""

import numpy as np
import pytest
from PIL import Image

from tests.sources.building import built
from tfprep import sources
from tfprep.errors import RecipeError, TooManyRejectsError
from tfprep.sources.detection.detect import detect

SOURCES = (sources.Coco, sources.CocoPanoptic, sources.Voc, sources.Yolo, sources.LabelMe)


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_of_annotations_takes_pixels(source):
    assert "image" in source(pixels={"image": sources.Pixels()}).decoders()
    with pytest.raises(RecipeError, match=rf"{source.__name__}: pixels=\{{'boxes': ...\}} names no image"):
        source(pixels={"boxes": sources.Pixels()})


def test_transparent_pixels_are_laid_over_the_colour_that_is_named(tmp_path):
    pytest.importorskip("yaml")
    rgba = np.random.default_rng(0).integers(0, 256, (20, 30, 4)).astype(np.uint8)
    for folder in ("images/train", "labels/train"):
        (tmp_path / "data" / folder).mkdir(parents=True)
    Image.fromarray(rgba).save(tmp_path / "data/images/train/one.png")
    (tmp_path / "data/labels/train/one.txt").write_text("0 0.5 0.5 0.5 0.5\n")
    (tmp_path / "data/data.yaml").write_text("path: .\ntrain: images/train\nnames: [cat]\n")
    with pytest.raises(TooManyRejectsError, match="transparent pixels"):
        built(sources.Yolo(), tmp_path / "data", tmp_path / "refused")
    assert detect(tmp_path / "data").source == sources.Yolo(
        pixels={"image": sources.Pixels(background=(255, 255, 255))}
    )
    laid = sources.Yolo(pixels={"image": sources.Pixels(background=(10, 200, 30))})
    fields, rejects = built(laid, tmp_path / "data", tmp_path / "out")
    assert not rejects
    share = rgba[..., 3:] / 255
    expected = rgba[..., :3] * share + np.array([10, 200, 30]) * (1 - share)
    assert np.abs(fields["images/train/one.png"]["image"] - expected).max() <= 1

"""A newcomer has boxes as COCO writes them, xywh, in a table."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

import tfprep
from tfprep import Recipe, codecs, sources
from tfprep.errors import TfprepError

ROWS = {"xywh": [30, 10, 20, 12], "rel_xyxy": [0.3, 0.2, 0.5, 0.44], "xyxy": [30, 10, 50, 22]}


def recipe(**options):
    return Recipe(
        name="boxes",
        source=sources.Table("boxes.jsonl", image="file", fields={"boxes": ("boxes", "boxes")}, **options),
        store={"image": codecs.Png(), "boxes": codecs.Scalar()},
    )


@pytest.fixture
def folder(tmp_path, request):
    """An image of 100 x 50 pixels whose object is white, and its box in the form of the parameter."""
    image = np.zeros((50, 100, 3), np.uint8)
    image[10:22, 30:50] = 255
    Image.fromarray(image).save(tmp_path / "0.png")
    (tmp_path / "boxes.jsonl").write_text(json.dumps({"file": "0.png", "boxes": [ROWS[request.param]]}) + "\n")
    return tmp_path


@pytest.mark.parametrize("folder", ["xywh"], indirect=True)
def test_a_box_that_is_no_pair_of_corners_is_a_reject_that_says_how_to_name_its_form(folder):
    """All samples are rejected, so that nothing is built."""
    with pytest.raises(TfprepError, match=r"x, y, width and height, say so \(box_format='xywh'\)"):
        tfprep.build(recipe(), folder / "out", data=folder)


@pytest.mark.parametrize(("folder", "form"), [(form, form) for form in ROWS], indirect=["folder"])
def test_boxes_in_the_form_that_the_source_names_bound_the_object(folder, form):
    tfprep.build(recipe(box_format=form), folder / "out", data=folder)
    (batch,) = tfprep.open(folder / "out").numpy_loader("train", batch_size=1, training=False)
    rows, columns = np.nonzero(batch["image"][0, :, :, 0])
    corners = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    np.testing.assert_allclose(batch["boxes"][0], [corners], atol=1e-4)

"""Conversion of boxes compared with Keras's own."""

from __future__ import annotations

import numpy as np
import pytest

import tfprep
from tfprep.boxes import BOX_FORMATS
from tfprep.errors import RecipeError

BOXES = np.array([[[10, 20, 30, 60], [0, 0, 200, 100]], [[1.5, 2.25, 99, 100], [5, 5, 6, 7]]], np.float32)


@pytest.mark.parametrize("target", BOX_FORMATS)
def test_every_form_is_that_of_keras_and_comes_back(target):
    keras = pytest.importorskip("keras")
    made = tfprep.convert_boxes(BOXES, target, size=(100, 200))
    expected = keras.utils.bounding_boxes.convert_format(BOXES, source="xyxy", target=target, height=100, width=200)
    np.testing.assert_allclose(made, np.asarray(expected), rtol=1e-6)
    back = tfprep.convert_boxes(made, "xyxy", source=target, size=(100, 200))
    np.testing.assert_allclose(back, BOXES, rtol=1e-6, atol=1e-5)


def test_tensors_and_ragged_tensors_keep_their_type():
    tf = pytest.importorskip("tensorflow")
    expected = tfprep.convert_boxes(BOXES, "rel_yxyx", size=(100, 200))
    np.testing.assert_allclose(tfprep.convert_boxes(tf.constant(BOXES), "rel_yxyx", size=(100, 200)), expected)
    ragged = tf.RaggedTensor.from_row_lengths(BOXES.reshape(-1, 4), [3, 0, 1])
    converted = tfprep.convert_boxes(ragged, "rel_yxyx", size=(100, 200))
    assert converted.row_lengths().numpy().tolist() == [3, 0, 1]
    np.testing.assert_allclose(converted.flat_values, expected.reshape(-1, 4))


@pytest.mark.parametrize("library", ["numpy", "tensorflow"])
@pytest.mark.parametrize("target", ["xywh", "rel_center_xywh"])
def test_the_rows_that_a_loader_pads_with_stay_as_they_are(library, target):
    xp = pytest.importorskip(library)
    padded = np.concatenate([BOXES, np.full((2, 3, 4), -1, np.float32)], 1)
    converted = np.asarray(tfprep.convert_boxes(xp.stack(padded), target, size=(100, 200)))
    np.testing.assert_allclose(converted[:, :2], tfprep.convert_boxes(BOXES, target, size=(100, 200)))
    assert (converted[:, 2:] == -1).all()
    assert tfprep.convert_boxes(xp.stack([[1, 2, 3, 4], [-1] * 4]), "rel_xyxy", size=(2, 4))[1, 0] == -1


def test_mistakes_are_named():
    with pytest.raises(RecipeError, match="a form of boxes is one of xyxy, yxyx"):
        tfprep.convert_boxes(BOXES, "coco")
    with pytest.raises(RecipeError, match=r"boxes from xyxy to rel_xywh need size=\(height, width\)"):
        tfprep.convert_boxes(BOXES, "rel_xywh")

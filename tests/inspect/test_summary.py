"""What a notebook shows of a dataset, and its splits by name."""

import re

import numpy as np
import pytest

import tfprep
from tfprep.errors import DatasetError


def test_a_notebook_shows_splits_fields_and_six_pictures(photos):
    data = tfprep.open(photos.path)
    html = data._repr_html_()
    assert len(re.findall(r'<img alt="a sample" src="data:image/jpeg;base64,[\w+/=]+">', html)) == 6
    for cell in ("train", "50", "image", "uint8", *data.fields):
        assert f">{cell}</td>" in html
    assert "<script" not in html


def test_a_split_by_name_has_a_length_loaders_and_a_picture(photos):
    data = tfprep.open(photos.path)
    assert list(data) == list(data.splits)
    assert len(data["train"]) == data.splits["train"].samples == 50
    one, other = (next(iter(of)) for of in (data["val"].numpy_loader(batch_size=4), data.numpy_loader("val", 4)))
    np.testing.assert_array_equal(one["image"], other["image"])
    assert data.show("val", samples=2, variants=1).height < data.show("val", samples=4, variants=1).height
    with pytest.raises(DatasetError, match="nowhere"):
        data["nowhere"]

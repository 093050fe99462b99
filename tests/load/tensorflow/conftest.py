"""Tests of this folder that take `names` run twice: with TensorFlow's private names, and without them."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["private names", "public names"])
def names(request, monkeypatch):
    from tfprep.load.tensorflow import private

    monkeypatch.setenv(private.PUBLIC_ONLY, str(int(request.param == "public names")))
    return request.param

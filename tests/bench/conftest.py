"""Small datasets that are built in this process, one for all tests of a kind."""

import os
import time
from dataclasses import replace

import pytest

from tests.photos import build_photos
from tfprep import codecs, limits
from tfprep.load import open as open_data

SAMPLES = 96


@pytest.fixture(autouse=True)
def idle_machine(monkeypatch):
    """No other program seems to run: a verdict about a staged cause must not depend on what else this machine does."""
    now = limits.CpuTimes.now
    monkeypatch.setattr(limits.CpuTimes, "now", lambda: replace(now(), others=0.0))


@pytest.fixture
def slow_reads(monkeypatch):
    """`slow_reads(s)` makes every record take s seconds longer, like a slow disk. Records are read with one `preadv` each."""
    read = os.preadv
    return lambda seconds: monkeypatch.setattr(os, "preadv", lambda *given: time.sleep(seconds) or read(*given))


def make_dataset(folder, codec, size, samples=SAMPLES):
    """`samples` images of noise, `size` x `size`, in two classes, stored by `codec`."""
    noise = (size, size)
    return open_data(build_photos(folder, samples, codec, labels=("cat", "dog"), noise=noise))


@pytest.fixture(scope="session")
def raw_data(tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("raw"), codecs.Raw(), 16)


@pytest.fixture(scope="session")
def png_data(tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("png"), codecs.Png(), 384, 24)


@pytest.fixture(scope="session")
def jpeg_data(tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("jpeg"), codecs.Jpeg(95), 48)

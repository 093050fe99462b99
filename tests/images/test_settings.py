"""What a package in the same process sets does not decide what is decoded, and warnings of decoders are noted."""

import io
import os
import threading
import warnings

import numpy as np
import pytest
from PIL import GifImagePlugin, Image, ImageFile, PngImagePlugin

from tfprep import images
from tfprep.errors import SampleError

SHADES = np.random.default_rng(0).integers(0, 256, (6, 8, 3)).astype(np.uint8)
PICTURE = Image.fromarray(SHADES).resize((160, 120), Image.Resampling.BICUBIC)


def encoded(form="JPEG", **options):
    file = io.BytesIO()
    PICTURE.save(file, form, **options)
    return file.getvalue()


SETTINGS = [
    (ImageFile, "LOAD_TRUNCATED_IMAGES", True),
    (Image, "MAX_IMAGE_PIXELS", 10),
    (PngImagePlugin, "MAX_TEXT_CHUNK", 1),
    (GifImagePlugin, "LOADING_STRATEGY", GifImagePlugin.LoadingStrategy.RGB_ALWAYS),
]


@pytest.fixture
def foreign(monkeypatch):
    """The settings of a package that wants to read everything."""
    for module, name, value in SETTINGS:
        monkeypatch.setattr(module, name, value)
    yield
    assert [getattr(module, name) for module, name, _ in SETTINGS] == [value for *_, value in SETTINGS]


def test_settings_of_other_packages_count_for_nothing_and_stay(foreign):
    filters = list(warnings.filters)
    with pytest.raises(SampleError, match="truncated"):
        images.decode_image(encoded()[:-200])
    with pytest.raises(SampleError, match="not a whole image"):
        images.decode_image(encoded("PNG")[:-200])
    info = PngImagePlugin.PngInfo()
    info.add_text("comment", "words")
    assert np.array_equal(images.decode_image(encoded("PNG", pnginfo=info)), np.asarray(PICTURE))
    file = io.BytesIO()
    Image.fromarray(np.arange(12, dtype=np.uint8).reshape(3, 4)).convert("P").save(file, "GIF")
    assert images.decode_mask(file.getvalue()).shape == (3, 4)
    assert list(warnings.filters) == filters


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_settings_while_several_threads_decode_and_fork(foreign):
    def decode(number):
        for _ in range(30):
            if number % 2:
                images.decode_image(encoded("PNG"))
            else:
                with pytest.raises(SampleError):
                    images.decode_image(encoded()[:-200])

    threads = [threading.Thread(target=decode, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    child = os.fork()
    if not child:  # a thread of the parent may hold the lock at this moment
        os._exit(0 if ImageFile.LOAD_TRUNCATED_IMAGES and images.decode_image(encoded("PNG")).size else 1)
    for thread in threads:
        thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("options", [{}, {"subsampling": 0}, {"quality": 100}])
def test_a_jpeg_without_its_end_marker_is_whole(options):
    data = encoded(**options)
    for cut in (data[:-2], data[:-1]):
        with images.decoder_warnings() as found:
            assert np.array_equal(images.decode_image(cut), np.asarray(Image.open(io.BytesIO(data))))
        assert found == ["the end marker of the JPEG is missing"]
        assert not images.keeps_original(cut)
    assert images.keeps_original(data)
    for lost in range(3, 60):  # the last pixels are not there
        with pytest.raises(SampleError, match="not a whole image"):
            images.decode_image(data[:-lost])


def test_a_progressive_jpeg_without_its_end_may_lack_whole_scans():
    data = encoded(progressive=True)
    scans = [at for at in range(len(data)) if data[at : at + 2] == b"\xff\xda"]
    for cut in (data[:-2], data[: scans[-1]]):
        with pytest.raises(SampleError, match="not a whole image"):
            images.decode_image(cut)


def test_damage_inside_a_jpeg_is_noted():
    data = encoded()
    with images.decoder_warnings() as found:
        images.decode_image(data)
        assert not found
        damaged = images.decode_image(data[:-400] + data[-2:])
    assert len(found) == 1
    assert "premature end of data segment" in found[0]
    assert not np.array_equal(damaged, np.asarray(PICTURE))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_an_orientation_that_is_taken_back(orientation, form):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(form, exif=exif.tobytes())
    upright = images.decode_image(data)
    assert images.file_orientation(data) == orientation
    assert np.array_equal(images.as_stored(upright, orientation), np.asarray(Image.open(io.BytesIO(data))))

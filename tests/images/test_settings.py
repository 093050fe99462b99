"""What a package in the same process sets does not decide what is decoded, and warnings of decoders are noted."""

import io

import numpy as np
import pytest
from PIL import GifImagePlugin, Image, ImageFile

from tests.photos import oriented, written
from tfprep import images
from tfprep.errors import BuildError, SampleError

SHADES = np.random.default_rng(0).integers(0, 256, (6, 8, 3)).astype(np.uint8)
PICTURE = Image.fromarray(SHADES).resize((160, 120), Image.Resampling.BICUBIC)


def encoded(form="JPEG", **options):
    return written(PICTURE, form, **options)


SETTINGS = [
    (ImageFile, "LOAD_TRUNCATED_IMAGES", True),
    (GifImagePlugin, "LOADING_STRATEGY", GifImagePlugin.LoadingStrategy.RGB_ALWAYS),
]


@pytest.mark.parametrize(("module", "name", "value"), SETTINGS)
def test_a_setting_with_which_images_decode_to_other_pixels_is_refused(monkeypatch, module, name, value):
    monkeypatch.setattr(module, name, value)
    with pytest.raises(BuildError, match=rf"{module.__name__}.{name} to .*Set it back") as refused:
        images.decode_image(encoded("PNG"))
    exec("import PIL.GifImagePlugin, PIL.ImageFile\n" + str(refused.value).rpartition(": ")[2])  # what the message says
    assert images.decode_image(encoded("PNG")).shape == (120, 160, 3)


def test_limits_of_pillow_are_named_and_raised_only_while_a_larger_image_is_decoded(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(SampleError, match=r"exceeds limit.*sources.Pixels\(max_pixels="):
        images.decode_image(encoded("PNG"))
    with images.pixel_limit(1 << 20), images.decoder_warnings() as found:
        assert images.decode_image(encoded("PNG")).shape == (120, 160, 3)
    assert (Image.MAX_IMAGE_PIXELS, found) == (10, [])


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
    with images.decoder_warnings() as found:
        images.decode_mask(written(np.zeros((9, 9), np.uint8), "JPEG"))
    assert found == ["a JPEG does not keep the numbers of a mask; store masks without loss, as PNG"]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_an_orientation_that_is_taken_back(orientation, form):
    data = encoded(form, exif=oriented(orientation).tobytes())
    upright = images.decode_image(data)
    assert images.file_orientation(data) == orientation
    assert np.array_equal(images.as_stored(upright, orientation), np.asarray(Image.open(io.BytesIO(data))))

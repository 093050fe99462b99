"""Images that are not 8-bit RGB, written by tifffile, pydicom, rasterio, OpenCV and Pillow, built and loaded number by number."""

from __future__ import annotations

import io

import cv2
import numpy as np
import pytest
from PIL import Image

import tfprep
from tests.sources.building import built, write_picture
from tfprep import augment, codecs, sources
from tfprep.dataset import open_dataset
from tfprep.errors import RecipeError
from tfprep.recipe import Recipe

tifffile = pytest.importorskip("tifffile")
pydicom = pytest.importorskip("pydicom")
RNG = np.random.default_rng(5)
SIZE = 40, 56
DEEP = RNG.integers(0, 65536, (*SIZE, 4)).astype(np.uint16)
KEPT = sources.Folder("**", pixels={"image": sources.Pixels()})


def tiff(array, **options):
    file = io.BytesIO()
    tifffile.imwrite(file, array, **{"photometric": "minisblack", **options})
    return file.getvalue()


def png(array):
    order = {3: [2, 1, 0], 4: [2, 1, 0, 3]}.get(array.shape[2] if array.ndim == 3 else 1)
    return cv2.imencode(".png", array if order is None else array[:, :, order])[1].tobytes()


def pillow(array, form, mode=None, **options):
    file = io.BytesIO()
    Image.fromarray(array, mode).save(file, form, **options)
    return file.getvalue()


def dicom(array, *, photometric="MONOCHROME2", bits=12, slope=None, window=None, patient="p", signed=False):
    """A DICOM file of one frame, or several where the array has three axes and is no RGB."""
    header = pydicom.dataset.Dataset()
    header.file_meta = pydicom.dataset.FileMetaDataset()
    header.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    header.file_meta.MediaStorageSOPClassUID = header.SOPClassUID = pydicom.uid.CTImageStorage
    header.file_meta.MediaStorageSOPInstanceUID = header.SOPInstanceUID = pydicom.uid.generate_uid()
    colour = photometric == "RGB"
    header.Rows, header.Columns = array.shape[:2] if colour or array.ndim == 2 else array.shape[1:]
    if array.ndim == 3 and not colour:
        header.NumberOfFrames = len(array)
    header.SamplesPerPixel, header.PhotometricInterpretation = 3 if colour else 1, photometric
    if colour:
        header.PlanarConfiguration = 0
    header.BitsAllocated = array.dtype.itemsize * 8
    header.BitsStored = 8 if colour else bits
    header.HighBit, header.PixelRepresentation = header.BitsStored - 1, int(signed)
    header.PatientID, header.SeriesInstanceUID = patient, f"1.2.{len(patient)}"
    if slope:
        header.RescaleSlope, header.RescaleIntercept = slope
    if window:
        header.WindowCenter, header.WindowWidth = window
    header.PixelData = array.tobytes()
    file = io.BytesIO()
    pydicom.dcmwrite(file, header, enforce_file_format=True)
    return file.getvalue()


def folder(root, files):
    root.mkdir(exist_ok=True, parents=True)
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


HU = RNG.integers(0, 4096, SIZE).astype(np.uint16)
PALETTE = np.zeros(SIZE, np.uint8)
PALETTE[:, 30:] = 1

FORMS = {
    "gray16.png": (lambda: png(DEEP[:, :, 0]), DEEP[:, :, :1]),
    "rgb16.png": (lambda: png(DEEP[:, :, :3]), DEEP[:, :, :3]),
    "rgba16.png": (lambda: png(DEEP), DEEP),
    "rgba8.png": (lambda: png((DEEP >> 8).astype(np.uint8)), (DEEP >> 8).astype(np.uint8)),
    "gray.png": (lambda: png((DEEP[:, :, 0] >> 8).astype(np.uint8)), (DEEP[:, :, :1] >> 8).astype(np.uint8)),
    "gray16.tif": (lambda: tiff(DEEP[:, :, 0]), DEEP[:, :, :1]),
    "rgb16.tif": (lambda: tiff(DEEP[:, :, :3], photometric="rgb"), DEEP[:, :, :3]),
    "planar.tif": (lambda: tiff(np.moveaxis(DEEP, 2, 0), planarconfig="separate"), DEEP),
    "big.tif": (lambda: tiff(DEEP[:, :, 0], bigtiff=True, byteorder=">"), DEEP[:, :, :1]),
    "zip.tif": (lambda: tiff(DEEP[:, :, 0], compression="zlib", tile=(16, 16)), DEEP[:, :, :1]),
    "float.tif": (lambda: tiff(DEEP[:, :, 1].astype(np.float32) / 7), DEEP[:, :, 1:2].astype(np.float32) / 7),
    "signed.tif": (lambda: tiff(DEEP[:, :, 1].astype(np.int32) - 9), DEEP[:, :, 1:2].astype(np.float32) - 9),
    "bands.tif": (lambda: tiff(np.moveaxis(np.tile(DEEP, 3), 2, 0), planarconfig="separate"), np.tile(DEEP, 3)),
    "ct.dcm": (lambda: dicom(HU, slope=(2, -1024)), HU[:, :, None].astype(np.float32) * 2 - 1024),
    "plain.dcm": (lambda: dicom(HU), HU[:, :, None]),
    "inverse.dcm": (lambda: dicom(HU, photometric="MONOCHROME1"), 4095 - HU[:, :, None]),
    "signed.dcm": (lambda: dicom(HU.astype(np.int16) - 99, signed=True, bits=16), HU[:, :, None].astype(np.float32) - 99),
    "rgb.dcm": (
        lambda: dicom((DEEP[:, :, :3] >> 8).astype(np.uint8), photometric="RGB"), (DEEP[:, :, :3] >> 8).astype(np.uint8),
    ),
}  # fmt: skip


def test_every_form_keeps_its_numbers_dtype_and_channels(tmp_path):
    """One decode of each, without a build: a dataset has one dtype and one number of channels."""
    decoder = KEPT.decoders()["image"]
    for name, (write, expected) in FORMS.items():
        raw = {"image": write()}
        made = decoder.decode(raw, None)
        np.testing.assert_array_equal(made, expected, err_msg=name)
        assert made.dtype == expected.dtype, name
        assert decoder.size(raw) == SIZE, name


@pytest.mark.parametrize("codec", [codecs.Raw(), codecs.Png()])
def test_a_build_keeps_16_bits_through_geometry_statistics_and_both_loaders(tmp_path, codec):
    tf = pytest.importorskip("tensorflow")
    wide = [np.clip(DEEP[:, :, :3].astype(int) + n, 0, 65535).astype(np.uint16) for n in range(4)]
    root = folder(tmp_path / "data", {f"{n}.png": png(pixels) for n, pixels in enumerate(wide)})
    options = {"geometry": [augment.Crop(32, 32)], "store": {"image": codec}}
    fields, rejects = built(KEPT, root, tmp_path / "out", **options)
    assert not rejects
    for n, pixels in enumerate(wide):
        np.testing.assert_array_equal(fields[f"{n}.png"]["image"], pixels[4:36, 12:44])
    data = tfprep.open(tmp_path / "out")
    crops = np.concatenate([pixels[4:36, 12:44].reshape(-1, 3) for pixels in wide])
    np.testing.assert_allclose(data.manifest.statistics["image"].mean, crops.mean(0), rtol=1e-6)
    np.testing.assert_allclose(data.manifest.statistics["image"].std, crops.std(0), rtol=1e-6)
    (batch,) = data.loader("train", batch_size=4, training=False, fields=["image", "key"])
    assert batch["image"].dtype == tf.uint16
    for key, image in zip(batch["key"].numpy(), batch["image"].numpy(), strict=True):
        np.testing.assert_array_equal(image, fields[key.decode()]["image"])


def test_bands_and_floats_through_a_build(tmp_path):
    bands = np.concatenate([DEEP, DEEP[:, ::-1]], axis=2).astype(np.float32) / 65535
    root = folder(tmp_path / "data", {"a.tif": tiff(np.moveaxis(bands, 2, 0), planarconfig="separate")})
    fields, rejects = built(KEPT, root, tmp_path / "out", geometry=[augment.Flip(p=1.0)], variants={"train": 2})
    assert not rejects
    np.testing.assert_array_equal(fields["a.tif"]["image"], bands)
    dataset = open_dataset(tmp_path / "out")
    np.testing.assert_array_equal(next(dataset.samples("train", 1, [0]))["image"], bands[:, ::-1])
    np.testing.assert_allclose(dataset.manifest.statistics["image"].mean, bands.mean((0, 1)), rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"to": "uint8"}, np.rint(DEEP[:, :, :3] / 257)),
        ({"to": "uint8", "low": 1000, "high": 3000}, np.rint(((DEEP[:, :, :3] - 1000.0) / 2000 * 255).clip(0, 255))),
        ({"to": "float32"}, DEEP[:, :, :3]),
        ({"channels": (2, 0)}, DEEP[:, :, [2, 0]]),
    ],
)
def test_a_narrowing_is_asked_for(options, expected):
    pixels = sources.Pixels(**options)
    source = sources.Folder("**", pixels={"image": pixels})
    made = source.decoders()["image"].decode({"image": png(DEEP[:, :, :3])}, None)
    np.testing.assert_array_equal(made, expected)
    assert made.dtype == (options.get("to") or "uint16")
    assert eval(repr(source), {"sources": sources}) == source


def test_a_window_of_dicom_is_that_of_pydicom():
    from pydicom.pixels import apply_voi_lut

    values = HU.astype(np.float32) * 2 - 1024
    data = dicom(HU, slope=(2, -1024), window=(40, 400))
    reference = apply_voi_lut(values, pydicom.dcmread(io.BytesIO(data)))
    low, high = reference.min(), reference.max()
    expected = np.rint((reference - low) / (high - low) * 255)
    for window in ("file", (40, 400)):
        source = sources.Folder("**", pixels={"image": sources.Pixels(to="uint8", window=window)})
        made = source.decoders()["image"].decode({"image": data}, None)
        assert abs(made[:, :, 0] - expected).max() <= 1
        assert len(np.unique(made)) > 50


def test_what_would_be_lost_or_is_not_one_image_is_a_reject(tmp_path):
    pages = tiff(np.stack([DEEP[:, :, 0], DEEP[:, :, 1]]))
    animated = io.BytesIO()
    frames = [Image.fromarray((DEEP[:, :, n] >> 8).astype(np.uint8)) for n in range(2)]
    frames[0].save(animated, "GIF", save_all=True, append_images=frames[1:])
    files = {
        "deep.png": (png(DEEP[:, :, :3]), "16 bits a channel, of which 8 would be lost"),
        "deep.tif": (tiff(DEEP[:, :, 0]), "16 bits a channel, of which 8 would be lost"),
        "pages.tif": (pages, "holds 2 frames, expected one image; choose one with sources.Pixels(page=0)"),
        "moving.gif": (animated.getvalue(), "holds 2 frames"),
        "good.png": (png((DEEP[:, :, :3] >> 8).astype(np.uint8)), ""),
    }
    root = folder(tmp_path / "data", {name: data for name, (data, _) in files.items()})
    fields, rejects = built(sources.Folder("**"), root, tmp_path / "out")
    assert set(fields) == {"good.png"}
    for name, (_, reason) in files.items():
        assert reason in rejects.get(name, "")


def sized_and_decoded(decoder, data):
    return decoder.size({"image": data}), decoder.decode({"image": data}, None)


def test_odd_files_with_own_numbers_are_named(tmp_path):
    missing = DEEP[:, :, 0].astype(np.float32)
    missing[3, 4] = -9999
    nodata = tiff(missing, extratags=[(42113, 2, 0, "-9999", True)])
    nan = DEEP[:, :, 0].astype(np.float32)
    nan[0, 0] = np.nan
    cases = [
        (tiff(np.stack([DEEP[:, :, 0]] * 2)), {}, "TIFF holds 2 pages, expected one image; choose one with page=0"),
        (tiff(DEEP[:, :, 0]), {"page": 3}, "there is no page 3: the file has 1"),
        (nodata, {}, "of the numbers are -9999, which means no data"),
        (tiff(nan), {}, "holds NaN or infinity"),
        (tiff(DEEP[:, :, 0])[:900], {}, "not a whole"),
        (tiff(DEEP[:, :, 0].astype(np.uint32) << 16), {}, "are not exact in float32"),
        (tiff(DEEP[:, :, 0].astype(np.complex64)), {}, "not complex64"),
        (tiff(nan), {"to": "uint8"}, ""),
        (tiff(DEEP[:, :, 0].astype(np.float32)), {"to": "uint8"}, "floats have no range to make uint8 of"),
        (dicom(np.stack([HU, HU])), {}, "DICOM holds 2 frames, expected one image"),
        (dicom(HU)[:-100], {}, "not a whole DICOM file"),
        (dicom(HU), {"to": "uint8", "window": "file"}, "has no window"),
        (png(DEEP[:, :, :3]), {"channels": (3,)}, "there is no channel 3: the image has 3"),
        (b"nothing", {}, "not an image"),
    ]
    for data, options, reason in cases:
        decoder = sources.Folder("**", pixels={"image": sources.Pixels(**options)}).decoders()["image"]
        with pytest.raises(tfprep.errors.SampleError) as error:
            sized_and_decoded(decoder, data)
        assert reason in str(error.value)
    kept = sources.Folder("**", pixels={"image": sources.Pixels(nodata=0)}).decoders()["image"]
    assert kept.decode({"image": nodata}, None)[3, 4, 0] == 0
    second = sources.Folder("**", pixels={"image": sources.Pixels(page=1)}).decoders()["image"]
    np.testing.assert_array_equal(second.decode({"image": cases[0][0]}, None)[:, :, 0], DEEP[:, :, 0])
    np.testing.assert_array_equal(second.decode({"image": dicom(np.stack([HU, HU // 2]))}, None)[:, :, 0], HU // 2)


# affine, a part of rasterio, multiplies with `*`.
@pytest.mark.filterwarnings("ignore:Use `@` matmul instead of `\\*`:PendingDeprecationWarning")
def test_compressed_geotiff_by_rasterio():
    rasterio = pytest.importorskip("rasterio")
    bands = np.moveaxis(np.concatenate([DEEP, DEEP[::-1]], axis=2), 2, 0)
    with rasterio.io.MemoryFile() as memory:
        options = {"width": SIZE[1], "height": SIZE[0], "count": 8, "dtype": "uint16", "compress": "lzw"}
        options["transform"] = rasterio.Affine(10, 0, 500_000, 0, -10, 5_000_000)
        with memory.open(driver="GTiff", **options) as file:
            file.write(bands)
        data = memory.read()
    made = KEPT.decoders()["image"].decode({"image": data}, None)
    np.testing.assert_array_equal(made, np.moveaxis(bands, 0, 2))


def test_colour_ops_for_8_bits_say_so(tmp_path):
    root = folder(tmp_path / "data", {"a.png": png(DEEP[:, :, :3])})
    write_picture(root / "b.png", 1)
    recipe = {"colour": [augment.Brightness(0.2)], "variants": {"train": 2}, "store": {"image": codecs.Raw()}}
    fields, rejects = built(KEPT, root, tmp_path / "out", **recipe)
    assert "Brightness is defined for uint8 [H, W, 3], this image is uint16 [H, W, 3]" in rejects["a.png"]
    assert set(fields) == {"b.png"}


def test_jpeg_and_original_are_refused_where_they_would_lose_something():
    for codec, pixels in ((codecs.Jpeg(), sources.Pixels(to="uint16")), (codecs.Original(), sources.Pixels())):
        with pytest.raises(RecipeError, match=r"use Png\(\) or Raw\(\)"):
            Recipe(name="a", source=sources.Folder("**", pixels={"image": pixels}), store={"image": codec})


def test_all_slices_of_a_patient_are_in_one_split(tmp_path):
    files = {f"{n}.dcm": dicom(HU, patient=f"patient{n % 10}") for n in range(60)}
    root = folder(tmp_path / "data", {**files, "odd.dcm": b"no DICOM"})
    fractions = sources.Fractions(train=0.5, val=0.5, group_by="PatientID")
    source = sources.Folder("**", splits=fractions, pixels={"image": sources.Pixels()})
    splits = {entry.key: entry.split for entry in source.scan(root).entries}
    assert set(splits.values()) == {"train", "val"}
    for patient in range(10):
        assert len({splits[f"{n}.dcm"] for n in range(patient, 60, 10)}) == 1
    with pytest.raises(RecipeError, match="for DICOM one of PatientID"):
        sources.Folder("**", splits=sources.Fractions(train=1, group_by="scanner"))


def test_options_are_checked():
    for options, reason in (
        ({"to": "int8"}, "to is 'uint8'"),
        ({"low": 0, "high": 1}, "need to='uint8'"),
        ({"to": "uint8", "low": 0}, "expected low < high, both or neither"),
        ({"to": "uint8", "low": 2, "high": 1}, "expected low < high"),
        ({"to": "uint8", "low": 0, "high": 1, "window": "file"}, "window stands in place"),
        ({"to": "uint8", "window": (40, 0)}, "window is"),
        ({"channels": ()}, "channels are numbers"),
        ({"page": -1}, "page is a number"),
    ):
        with pytest.raises(RecipeError, match=f"Pixels: .*{reason}"):
            sources.Pixels(**options)
    with pytest.raises(RecipeError, match="names no image and no map"):
        sources.Folder("**", pixels={"mask": sources.Pixels()})


def test_transparent_pixels_are_laid_over_a_colour_that_is_named(tmp_path):
    """Pillow's own composition is the reference."""
    rgba = np.random.default_rng(3).integers(0, 256, (12, 10, 4)).astype(np.uint8)
    (tmp_path / "data").mkdir()
    Image.fromarray(rgba).save(tmp_path / "data/a.png")
    Image.fromarray(rgba[:, :, :3]).save(tmp_path / "data/b.png")
    Image.fromarray(rgba[:, :, 0]).save(tmp_path / "data/c.png")
    pixels = sources.Pixels(background=(10, 200, 30))
    fields, rejects = built(sources.Folder("*", pixels={"image": pixels}), tmp_path / "data", tmp_path / "out")
    assert not rejects
    whole = Image.new("RGBA", (10, 12), (10, 200, 30, 255))
    whole.alpha_composite(Image.fromarray(rgba))
    np.testing.assert_array_equal(fields["a.png"]["image"], np.asarray(whole.convert("RGB")))
    np.testing.assert_array_equal(fields["b.png"]["image"], rgba[:, :, :3])
    np.testing.assert_array_equal(fields["c.png"]["image"], np.repeat(rgba[:, :, :1], 3, 2))
    _, refused = built(sources.Folder("*"), tmp_path / "data", tmp_path / "refused")
    assert list(refused) == ["a.png"]
    for wrong in ({"background": (1, 2)}, {"background": (0, 0, 256)}, {"background": (0, 0, 0), "to": "uint8"}):
        with pytest.raises(RecipeError, match="background"):
            sources.Pixels(**wrong)

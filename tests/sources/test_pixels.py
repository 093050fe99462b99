"""Images that are not 8-bit RGB, written by tifffile, pydicom, rasterio, OpenCV and Pillow, built and loaded number by number."""

import importlib.util
import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tfprep
from tests.photos import written
from tests.sources.building import built, fields_of, folder, png
from tfprep import augment, codecs, images, sources
from tfprep.errors import RecipeError, SampleError, SourceError
from tfprep.images.pillow import check_pixels
from tfprep.recipe import Recipe
from tfprep.sources.detection.detect import detect

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


def pnm(array, white):
    """A PGM or PPM, whose numbers of more than 8 bits are big-endian."""
    head = f"P{6 if array.ndim == 3 else 5}\n{array.shape[1]} {array.shape[0]}\n{white}\n"
    return head.encode() + array.astype(">u2").tobytes()


def dicom(array, *, photometric="MONOCHROME2", bits=12, slope=None, patient="p", signed=False, **elements):
    """A DICOM file of one frame, or several where the array has three axes and is not RGB."""
    header = pydicom.dataset.Dataset()
    header.file_meta = pydicom.dataset.FileMetaDataset()
    order = "ExplicitVRLittleEndian" if array.dtype.isnative else "ExplicitVRBigEndian"
    header.file_meta.TransferSyntaxUID = getattr(pydicom.uid, order)
    header.file_meta.MediaStorageSOPClassUID = header.SOPClassUID = pydicom.uid.CTImageStorage
    header.file_meta.MediaStorageSOPInstanceUID = header.SOPInstanceUID = pydicom.uid.generate_uid()
    color = photometric == "RGB"
    header.Rows, header.Columns = array.shape[:2] if color or array.ndim == 2 else array.shape[1:]
    if array.ndim == 3 and not color:
        header.NumberOfFrames = len(array)
    header.SamplesPerPixel, header.PhotometricInterpretation = 3 if color else 1, photometric
    if color:
        header.PlanarConfiguration = 0
    header.BitsAllocated = array.dtype.itemsize * 8
    header.BitsStored = 8 if color else bits
    header.HighBit, header.PixelRepresentation = header.BitsStored - 1, int(signed)
    header.PatientID, header.SeriesInstanceUID = patient, f"1.2.{len(patient)}"
    if slope:
        header.RescaleSlope, header.RescaleIntercept = slope
    for name, value in elements.items():
        setattr(header, name, value)
    header.PixelData = array.tobytes()
    file = io.BytesIO()
    pydicom.dcmwrite(file, header, enforce_file_format=True)
    return file.getvalue()


def decoded(data, **options):
    """The pixels of a file with these options of `Pixels`."""
    source = sources.Folder("**", pixels={"image": sources.Pixels(**options)})
    return source.decoders()["image"].decode({"image": data}, None)


HU = RNG.integers(0, 4096, SIZE).astype(np.uint16)
PALETTE = np.zeros(SIZE, np.uint8)
PALETTE[:, 30:] = 1

FORMS = {
    "gray16.png": (lambda: png(DEEP[:, :, 0]), DEEP[:, :, :1]),
    "rgb16.png": (lambda: png(DEEP[:, :, :3]), DEEP[:, :, :3]),
    "rgba16.png": (lambda: png(DEEP), DEEP),
    "rgba8.png": (lambda: png((DEEP >> 8).astype(np.uint8)), (DEEP >> 8).astype(np.uint8)),
    "gray.png": (lambda: png((DEEP[:, :, 0] >> 8).astype(np.uint8)), (DEEP[:, :, :1] >> 8).astype(np.uint8)),
    "rgb16.ppm": (lambda: pnm(DEEP[:, :, :3], 65535), DEEP[:, :, :3]),
    "gray12.pgm": (lambda: pnm(HU, 4095), HU[:, :, None]),
    "comment.pgm": (lambda: pnm(HU, 4095).replace(b"P5\n", b"P5 # ends with CR\r"), HU[:, :, None]),
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
    "big.dcm": (lambda: dicom(HU.astype(">u2")), HU[:, :, None]),
    "inverse.dcm": (lambda: dicom(HU, photometric="MONOCHROME1"), 4095 - HU[:, :, None]),
    "signed.dcm": (lambda: dicom(HU.astype(np.int16) - 99, signed=True, bits=16), HU[:, :, None].astype(np.float32) - 99),
    "rgb.dcm": (
        lambda: dicom((DEEP[:, :, :3] >> 8).astype(np.uint8), photometric="RGB"), (DEEP[:, :, :3] >> 8).astype(np.uint8),
    ),
}  # fmt: skip


def test_every_form_keeps_its_numbers_dtype_and_channels():
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
    fields = fields_of(KEPT, root, tmp_path / "out", **options)
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


@pytest.mark.parametrize(
    ("file", "options", "expected"),
    [
        (png(DEEP[:, :, :3]), {"to": "uint8"}, np.rint(DEEP[:, :, :3] / 257)),
        (
            png(DEEP[:, :, :3]), {"to": "uint8", "low": 1000, "high": 3000},
            np.rint(((DEEP[:, :, :3] - 1000.0) / 2000 * 255).clip(0, 255)),
        ),
        (png(DEEP[:, :, :3]), {"to": "float32"}, DEEP[:, :, :3]),
        (png(DEEP[:, :, :3]), {"channels": (2, 0)}, DEEP[:, :, [2, 0]]),
        (pnm(HU, 4095), {"to": "uint8"}, np.rint(HU[:, :, None] / 4095 * 255)),
    ],
)  # fmt: skip
def test_a_narrowing_is_asked_for(file, options, expected):
    made = decoded(file, **options)
    np.testing.assert_array_equal(made, expected)
    assert made.dtype == (options.get("to") or "uint16")


def group(**elements):
    """An item of a sequence."""
    item = pydicom.dataset.Dataset()
    for name, value in elements.items():
        setattr(item, name, value)
    return item


def table(values, first, bits):
    """A modality LUT (PS3.3 C.11.1.1)."""
    item = pydicom.dataset.Dataset()
    item.add_new("LUTDescriptor", "US", [len(values), first, bits])
    item.add_new("LUTData", "US", [int(value) for value in values])
    return [item]


def linear(x, center, width):
    """PS3.3 C.11.2.1.2.1, from 0 to 1."""
    inside = (x - (center - 0.5)) / (width - 1) + 0.5
    return np.where(x <= center - 0.5 - (width - 1) / 2, 0, np.where(x > center - 0.5 + (width - 1) / 2, 1, inside))


X = HU.astype(np.float64)
CURVE = np.linspace(0, 1, 4096) ** 2
FRAMES = np.stack([HU, HU[::-1]])
GROUPS = {
    "PerFrameFunctionalGroupsSequence": [
        group(PixelValueTransformationSequence=[group(RescaleSlope=slope, RescaleIntercept=-100)]) for slope in (1, 3)
    ],
}
SHOWN = {
    "12 bits of 16 to 8": (dicom(HU), {}, X / 4095),
    "12 bits, dark is high": (dicom(HU, photometric="MONOCHROME1"), {}, 1 - X / 4095),
    "signed": (dicom(HU.astype(np.int16) - 2048, signed=True), {}, X / 4095),
    "rescaled": (dicom(HU, slope=(2, -1024)), {}, X / 4095),
    "window after rescale": (dicom(HU, slope=(2, -1024)), {"low": -160, "high": 239}, linear(2 * X - 1024, 40, 400)),
    "negative slope": (dicom(HU, slope=(-1, 4000)), {"low": 750, "high": 1249}, linear(4000 - X, 1000, 500)),
    "inversion after a range": (
        dicom(HU, photometric="MONOCHROME1"), {"low": 1000, "high": 1500}, 1 - ((X - 1000) / 500).clip(0, 1),
    ),
    "table of the modality": (
        dicom(HU, ModalityLUTSequence=[*table(CURVE * 65535, 0, 16)]), {}, (CURVE * 65535).astype(int)[HU] / 65535,
    ),
    "frame 1 of an enhanced file": (
        dicom(FRAMES, **GROUPS), {"low": 0, "high": 999, "page": 1}, linear(3 * X[::-1] - 100, 500, 1000),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SHOWN)
def test_gray_dicom_is_shown_as_the_standard_says(name):
    """Modality, then the range, then the inversion; PS3.3's formulas in NumPy are the reference."""
    data, options, expected = SHOWN[name]
    made = decoded(data, to="uint8", **options)
    assert made.dtype == np.uint8
    assert abs(made[:, :, 0] - expected * 255).max() <= 0.5 + 1e-6


def test_rescale_of_a_frame_and_palettes_of_dicom():
    np.testing.assert_array_equal(decoded(dicom(FRAMES, **GROUPS), page=1)[:, :, 0], 3 * X[::-1] - 100)
    tables = {}
    for name in ("Red", "Green", "Blue"):
        tables[f"{name}PaletteColorLookupTableDescriptor"] = [256, 0, 16]
        tables[f"{name}PaletteColorLookupTableData"] = RNG.integers(0, 1 << 16, 256).astype("<u2").tobytes()
    numbers = RNG.integers(0, 256, (5, 7)).astype(np.uint8)
    files = [dicom(numbers, photometric="PALETTE COLOR", bits=8, **tables)]
    if path := pydicom.data.get_testdata_file("examples_palette.dcm", download=False):  # from pydicom 3.0.1 on
        files.append(Path(path).read_bytes())
    for content in files:
        header = pydicom.dcmread(io.BytesIO(content))
        made = decoded(content)
        for channel, name in enumerate(("Red", "Green", "Blue")):
            colors = np.frombuffer(header[f"{name}PaletteColorLookupTableData"].value, "<u2")
            np.testing.assert_array_equal(made[:, :, channel], colors[header.pixel_array])


def test_planes_of_a_tiff_are_told_by_the_file_and_not_by_their_lengths():
    """Bands, height and width may all be equal."""
    cube = RNG.integers(0, 65536, (5, 5, 5)).astype(np.uint16)
    for planar, stored in (("separate", np.moveaxis(cube, 2, 0)), ("contig", cube)):
        made = decoded(tiff(stored, planarconfig=planar))
        np.testing.assert_array_equal(made, cube, err_msg=planar)
    wide = np.tile(cube[:, :, :3], (1, 2, 1))  # 5 x 10 pixels of 3 bands
    for planar, stored in (("separate", np.moveaxis(wide, 2, 0)), ("contig", wide)):
        made = decoded(tiff(stored, planarconfig=planar, photometric="rgb"))
        np.testing.assert_array_equal(made, wide, err_msg=planar)


def test_a_palette_of_a_tiff_with_alpha_and_one_that_rasterio_reads():
    """Pillow's conversion to RGB(A) is the reference."""
    colors = Image.fromarray((DEEP[:, :, :3] >> 8).astype(np.uint8)).quantize(16)
    expected = np.asarray(colors.convert("RGB"))
    opaque = np.dstack([expected, np.full(SIZE, 255, np.uint8)])
    np.testing.assert_array_equal(decoded(written(colors.convert("PA"), "TIFF")), opaque)
    pytest.importorskip("rasterio")
    np.testing.assert_array_equal(decoded(written(colors, "TIFF", compression="tiff_lzw")), expected)


def test_no_data_in_a_palette_is_one_of_its_numbers():
    """Also where that number is a level of another color."""
    index, colors = np.arange(4, dtype=np.uint8).reshape(2, 2), np.zeros((3, 256), np.uint16)
    colors[:, :4] = np.array([[100, 20, 30], [0, 10, 0], [5, 5, 0], [1, 2, 3]]).T << 8
    data = tiff(index, photometric="palette", colormap=colors, extratags=[(42113, 2, 0, "0", True)])
    with pytest.raises(SampleError, match=r"25\.0% of the numbers are 0"):
        decoded(data)
    np.testing.assert_array_equal(decoded(data, nodata=9), [[[9, 9, 9], [0, 10, 0]], [[5, 5, 0], [1, 2, 3]]])
    with pytest.raises(SampleError, match="nodata is 300, which uint8 does not hold"):
        decoded(data, nodata=300)


def test_many_bands_are_refused_without_a_log(caplog):
    with pytest.raises(SampleError):
        images.decode_image(tiff(np.zeros((8, 8, 13), np.uint16), planarconfig="contig"))
    assert not caplog.records


def test_one_transparent_color_is_a_channel():
    """A PNG of 1 or 8 bits with the chunk tRNS; Pillow's promotion to an alpha channel is the reference."""
    rgb = Image.fromarray((DEEP[:, :, :3] >> 8).astype(np.uint8) // 128 * 255)
    for mode, whole, transparent in (("1", "LA", 0), ("L", "LA", 255), ("RGB", "RGBA", (255, 0, 255))):
        data = written(rgb.convert(mode), transparency=transparent)
        made = decoded(data)
        np.testing.assert_array_equal(made, np.asarray(Image.open(io.BytesIO(data)).convert(whole)), err_msg=mode)
        assert set(np.unique(made[:, :, -1])) == {0, 255}
    with pytest.raises(SampleError, match="16 bits per channel with one transparent color"):
        decoded(written(DEEP[:, :, 0], transparency=7))


def test_odd_files_with_own_numbers_are_named():
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
        (tiff(nan), {"to": "uint8"}, "holds NaN or infinity"),
        (tiff(DEEP[:, :, 0].astype(np.float32)), {"to": "uint8"}, "floats have no range to make uint8 of"),
        (dicom(np.stack([HU, HU])), {}, "DICOM holds 2 frames, expected one image"),
        (dicom(HU)[:-100], {}, "not a whole DICOM file"),
        (png(DEEP[:, :, :3]), {"channels": (3,)}, "there is no channel 3: the image has 3"),
        (b"nothing", {}, "not an image"),
        *(
            (written(Image.new(mode, (4, 5)), "TIFF"), {}, f"TIFF of {name} colors")
            for mode, name in (("LAB", "CIELAB"), ("CMYK", "SEPARATED"), ("YCbCr", "YCBCR"))
        ),
    ]
    for data, options, reason in cases:
        with pytest.raises(SampleError, match=re.escape(reason)):
            decoded(data, **options)
    assert decoded(nodata, nodata=0)[3, 4, 0] == 0
    np.testing.assert_array_equal(decoded(cases[0][0], page=1)[:, :, 0], DEEP[:, :, 0])
    np.testing.assert_array_equal(decoded(dicom(np.stack([HU, HU // 2])), page=1)[:, :, 0], HU // 2)


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
    made = decoded(data)
    np.testing.assert_array_equal(made, np.moveaxis(bands, 0, 2))
    rgb = Image.fromarray((DEEP[:, :, :3] >> 8).astype(np.uint8))
    for image, compression in ((rgb, "zstd"), (rgb.convert("1"), "group4"), (rgb.convert("1"), "tiff_lzw")):
        expected = np.asarray(image.convert("L" if image.mode == "1" else "RGB")).reshape(*SIZE, -1)
        np.testing.assert_array_equal(decoded(written(image, "TIFF", compression=compression)), expected, compression)


@pytest.mark.filterwarnings("ignore:Dataset has no geotransform")
@pytest.mark.parametrize("bits", [4, 12])
def test_tiffs_of_packed_bits(bits):
    """The range of `to="uint8"` is that of the bits, not of the type that holds them."""
    rasterio, dtype = pytest.importorskip("rasterio"), "uint8" if bits < 8 else "uint16"
    numbers = (DEEP[:, :, 0] >> (16 - bits)).astype(dtype)
    with rasterio.io.MemoryFile() as memory:
        options = {"width": SIZE[1], "height": SIZE[0], "count": 1, "dtype": dtype, "nbits": bits}
        with memory.open(driver="GTiff", **options) as file:
            file.write(numbers, 1)
        data = memory.read()
    np.testing.assert_array_equal(decoded(data)[:, :, 0], numbers)
    np.testing.assert_array_equal(decoded(data, to="uint8")[:, :, 0], np.rint(numbers * (255 / (2**bits - 1))))


def test_jpeg_and_original_are_refused_where_they_would_lose_something():
    for codec, pixels in ((codecs.Jpeg(), sources.Pixels(to="uint16")), (codecs.Original(), sources.Pixels())):
        with pytest.raises(RecipeError, match=r"use Zstd\(\), Png\(\) or Raw\(\)"):
            Recipe(name="a", source=sources.Folder("**", pixels={"image": pixels}), store={"image": codec})


def test_all_slices_of_a_patient_are_in_one_split(tmp_path):
    files = {f"{n}.dcm": dicom(HU, patient=" " * (n % 3) + f"patient{n % 10}") for n in range(60)}
    root = folder(tmp_path / "data", {**files, "odd.dcm": b"no DICOM"})
    fractions = sources.Fractions(train=0.5, val=0.5, group_by="PatientID")
    source = sources.Folder("**", splits=fractions, pixels={"image": sources.Pixels()})
    splits = {entry.key: entry.split for entry in source.scan(root).entries}
    assert set(splits.values()) == {"train", "val"}
    for patient in range(10):
        assert len({splits[f"{n}.dcm"] for n in range(patient, 60, 10)}) == 1
    for name, content in (("z.dcm", dicom(HU, patient="")), ("z.png", 1)):
        with pytest.raises(SourceError, match=rf"{name} has no PatientID: group by another element"):
            list(source.scan(folder(root, {name: content})).entries)
        (root / name).unlink()


def test_transparent_pixels_are_laid_over_a_color_that_is_named(tmp_path):
    """Pillow's own composition is the reference."""
    rgba = np.random.default_rng(3).integers(0, 256, (12, 10, 4)).astype(np.uint8)
    root = folder(tmp_path / "data", {"a.png": png(rgba), "b.png": png(rgba[:, :, :3]), "c.png": png(rgba[:, :, 0])})
    pixels = sources.Pixels(background=(10, 200, 30))
    fields = fields_of(sources.Folder("*", pixels={"image": pixels}), root, tmp_path / "out")
    whole = Image.new("RGBA", (10, 12), (10, 200, 30, 255))
    whole.alpha_composite(Image.fromarray(rgba))
    np.testing.assert_array_equal(fields["a.png"]["image"], np.asarray(whole.convert("RGB")))
    np.testing.assert_array_equal(fields["b.png"]["image"], rgba[:, :, :3])
    np.testing.assert_array_equal(fields["c.png"]["image"], np.repeat(rgba[:, :, :1], 3, 2))
    _, refused = built(sources.Folder("*"), root, tmp_path / "refused")
    assert list(refused) == ["a.png"]


@pytest.fixture
def no_tifffile(monkeypatch):
    """As where it is not installed."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *at: None if name == "tifffile" else find(name, *at))


def test_tiff_that_becomes_8_bit_rgb_needs_no_tifffile(tmp_path, no_tifffile):
    rgb = np.random.default_rng(3).integers(0, 256, (12, 10, 3)).astype(np.uint8)
    root = folder(tmp_path / "data", {"a.tif": tiff(rgb, photometric="rgb"), "b.png": png(rgb)})
    pixels = sources.Pixels(background=(255, 255, 255))
    fields = fields_of(sources.Folder("*", pixels={"image": pixels}), root, tmp_path / "out")
    for key in ("a.tif", "b.png"):
        np.testing.assert_array_equal(fields[key]["image"], rgb)


def test_init_names_the_missing_package_for_some_of_the_files(tmp_path, no_tifffile):
    """It asks for none where the others decide, and says that the build of these needs it."""
    deep = {f"{n}.tif": tiff(DEEP[:, :, :3], photometric="rgb") for n in range(2)}
    root = folder(tmp_path / "data", deep | {f"{n}.png": png(DEEP[:, :, :3]) for n in range(30)})
    found = detect(root, "images")
    assert found.source.pixels == {"image": sources.Pixels()}
    assert any("such as 0.tif: reading TIFF with its own numbers needs tifffile" in line for line in found.lines())


def test_the_limit_of_pixels_is_an_option(tmp_path):
    jpeg = written(Image.new("RGB", (60, 50)), "JPEG")
    root = folder(tmp_path / "data", {"a.png": png(DEEP[:, :, 0]), "b.jpg": jpeg})
    source = sources.Folder("**", pixels={"image": sources.Pixels(max_pixels=2999)})
    fields, rejected = built(source, root, tmp_path / "small")
    assert rejected == {"b.jpg": "60 x 50 pixels are more than the limit of 2,999; the file may be hostile. If it is not: "
                       "sources.Pixels(max_pixels=3000)"}  # fmt: skip
    assert fields["a.png"]["image"].shape == (*SIZE, 1)
    large = images.MAX_PIXELS + 1
    with images.pixel_limit(large):
        check_pixels(1, large)
    with pytest.raises(SampleError, match=rf"sources.Pixels\(max_pixels={large}\)"):
        check_pixels(1, large)
    with pytest.raises(SampleError, match=r"exceeds limit of \d+ pixels.*sources.Pixels\(max_pixels="):  # Pillow's own
        images.decode_image(written(Image.new("1", (20_000, 10_000)), "PNG"))
    for wrong in (0, -1, "x"):
        with pytest.raises(RecipeError, match="max_pixels is a number of pixels from 1"):
            sources.Pixels(max_pixels=wrong)


def test_a_pydicom_without_what_is_used_ends_the_build(tmp_path, monkeypatch):
    """Version 2 has no `pydicom.pixels`: no image is at fault."""
    monkeypatch.setitem(sys.modules, "pydicom.pixels", None)
    with pytest.raises(ImportError, match=r"pydicom\.pixels"):
        images.decode_pixels(dicom(DEEP[:, :, 0], bits=16))

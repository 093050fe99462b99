"""Every bad input is rejected by name, with its stage, and affects no other; readable input is converted correctly."""

import io
import json
import os
import subprocess
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from tests.builder.conftest import check_whole, digests, driver
from tfprep.dataset import open_dataset
from tfprep.errors import BuildError, TooManyRejectsError

GOOD = 30


def jpeg(**options) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((24, 28, 3), 90, np.uint8)).save(file, "JPEG", **options)
    return file.getvalue()


def saved(image: Image.Image, form: str, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def noise(form: str) -> bytes:
    return saved(Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 28, 3), np.uint8)), form)


def frames(form: str) -> bytes:
    images = [Image.new("RGB", (28, 24), colour) for colour in ("red", "green", "blue")]
    return saved(images[0], form, save_all=True, append_images=images[1:])


def bomb() -> bytes:
    """A PNG header of 60,000 x 60,000 pixels."""
    import struct
    import zlib

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def jpeg_bomb() -> bytes:
    data = bytearray(jpeg())
    place = data.index(b"\xff\xc0") + 5
    data[place : place + 4] = b"\xff\x00\xff\x00"
    return bytes(data)


BAD_IMAGES = {
    "empty": (b"", "decode", "the file is empty (0 bytes)"),
    "text": (b"this is no image at all", "decode", "not an image: no known format begins with the bytes b'this is '"),
    "cut in the header": (jpeg()[:50], "decode", "not a"),
    "cut in the middle": (noise("JPEG")[:-60], "decode", "not a whole"),
    "cut PNG": (noise("PNG")[:900], "decode", "not a whole image: "),
    "GIF with frames": (frames("GIF"), "decode", "GIF holds 3 frames, expected one image"),
    "APNG": (frames("PNG"), "decode", "PNG holds 3 frames, expected one image"),
    "WebP with frames": (frames("WEBP"), "decode", "WEBP holds 3 frames, expected one image"),
    "TIFF with pages": (frames("TIFF"), "decode", "TIFF holds 3 frames, expected one image; choose one with sources.Pixels(p"),
    "bomb": (bomb(), "decode", "Image size (3600000000 pixels) exceeds limit of 178956970 pixels"),
    "JPEG bomb": (jpeg_bomb(), "decode", "65280 x 65280 pixels are more than the limit of 178,956,970"),
    "PostScript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "decode", "not an image: no known format"),
    "floats": (saved(Image.fromarray(np.zeros((24, 28), np.float32)), "TIFF"), "decode", "an image of 32-bit floats"),
}  # fmt: skip


def by_key(rejects):
    return sorted(rejects, key=lambda reject: reject["key"])


def test_bad_images_are_named(full):
    for number, (content, _, _) in enumerate(BAD_IMAGES.values()):
        full.add(f"train/cat/bad{number:02}", 1).write_bytes(content)
    summary = full.build(max_bad=1)
    assert (summary.samples, summary.rejects) == (GOOD, len(BAD_IMAGES))
    for number, (reject, (_, stage, reason)) in enumerate(
        zip(by_key(full.rejects()), BAD_IMAGES.values(), strict=True)
    ):
        name = f"train/cat/bad{number:02}.jpg"
        assert (reject["key"], reject["split"], reject["file"]) == (name, "train", name)
        assert (reject["stage"], reject["field"]) == (stage, "image")
        assert reject["error"].startswith(reason), reject["error"]


def dangling(path):
    path.unlink()
    path.symlink_to("nowhere.png")


def folder(path):
    path.unlink()
    path.mkdir()


def pipe(path):
    path.unlink()
    os.mkfifo(path)


def mask_of(*shape, value=0):
    return lambda path: Image.fromarray(np.full(shape, value, np.uint8)).save(path)


MASK, IMAGE = ".mask.png", ".jpg"
SPOILT = [
    (Path.unlink, MASK, "read", "mask", "cannot read the file: No such file or directory", MASK),
    (dangling, MASK, "read", "mask", "cannot read the file: No such file or directory", MASK),
    (dangling, IMAGE, "read", "image", "cannot read the file: No such file or directory", IMAGE),
    (folder, MASK, "read", "mask", "cannot read the file: Is a directory", MASK),
    (pipe, MASK, "read", "mask", "not a regular file", MASK),
    (mask_of(24, 29), MASK, "decode", "", "images, masks and maps of one sample have one size; image is 28 x 24, mask", None),
    (mask_of(24, 28, value=3), MASK, "decode", "mask", "class 3 is outside the list of 3 classes", MASK),
    (mask_of(24, 28, 3), MASK, "decode", "mask", "a mask has one channel of class numbers, this one is RGB (3 channels)", None),
    (lambda path: path.write_text("class 1 everywhere"), MASK, "decode", "mask", "not an image", None),
]  # fmt: skip
"""What happens to which file of a sample; stage, field and reason of the reject, and the file that it names."""


def test_bad_masks_and_links_are_named(full):
    for number, (spoil, suffix, *_) in enumerate(SPOILT):
        full.add(f"train/cat/bad{number}", 1)
        spoil(full.data / f"train/cat/bad{number}{suffix}")
    summary = full.build(max_bad=1)
    assert (summary.samples, summary.rejects) == (GOOD, len(SPOILT))
    for number, (reject, (_, _, stage, field, reason, file)) in enumerate(
        zip(by_key(full.rejects()), SPOILT, strict=True)
    ):
        name = f"train/cat/bad{number}"
        assert (reject["key"], reject["stage"], reject["field"]) == (f"{name}.jpg", stage, field)
        assert reject["error"].startswith(reason), reject["error"]
        assert reject["file"] == (f"{name}{file}" if file else reject["file"])


NO_PRIVILEGES = """
import ctypes, os
if os.getuid() == 0:  # root reads everything by its capabilities: give them all up (capset, version 3, two words)
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert ctypes.CDLL(None, use_errno=True).capset(header, none) == 0
"""


def test_unreadable_permissions_are_named(full):
    full.add("train/cat/bad", 1).chmod(0)
    command = driver(full, workers=0, code=NO_PRIVILEGES)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    (reject,) = full.rejects()
    assert (reject["stage"], reject["error"]) == ("read", "cannot read the file: Permission denied")


USER_FUNCTIONS = {
    "raise ValueError('no luck')": "ValueError: no luck",
    "return np.full((16, 20), np.nan, np.float32)": "it gave NaN or infinity",
    "return 5": "expected a NumPy array, got int",
    "return np.zeros((3, 3))": "expected an array of height and width (16, 20), got",
    "raise SystemExit('stop')": "SystemExit: stop",
    "return np.ones((1 << 60,), np.uint8)": "MemoryError: ",
    "raise ValueError('x' * 5000)": "ValueError: " + "x" * 988 + "... (5012 characters)",
    "return np.full((16, 20), None)": "expected a map, numbers [H, W] or [H, W, C], got object",
}


def test_a_users_function_that_fails_on_some_samples(full):
    """The images of these samples are plain, each of another level; the masks of all others are as they were."""
    full.change_recipe("colour=[augment.Brightness(0.2)],", "")
    body = "".join(f"    if level == {number}:\n        {code}\n" for number, code in enumerate(USER_FUNCTIONS))
    full.change_recipe(
        "RECIPE = Recipe(",
        "def made(sample, generator):\n    low, level = sample['image'].min(), sample['image'].max()\n"
        f"    level = int(level) // 20 if level - low < 3 else -1\n{body}"
        "    return sample['mask'].astype(np.float32)\n\nRECIPE = Recipe(",
    )
    full.change_recipe("derive={", 'derive={"made": made, ')
    full.change_recipe('"label": codecs.Scalar()', '"label": codecs.Scalar(), "made": codecs.Raw()')
    for number in range(len(USER_FUNCTIONS)):
        path = full.add(f"train/cat/bad{number}", 1)
        Image.fromarray(np.full((24, 28, 3), 20 * number + 10, np.uint8)).save(path)
    summary = full.build(max_bad=1)
    assert (summary.samples, summary.rejects) == (GOOD, len(USER_FUNCTIONS))
    for number, (reject, reason) in enumerate(zip(by_key(full.rejects()), USER_FUNCTIONS.values(), strict=True)):
        assert (reject["key"], reject["stage"], reject["field"]) == (f"train/cat/bad{number}.jpg", "derive", "made")
        assert reject["error"].startswith(reason)


def test_a_file_that_does_not_fit_into_memory_is_named(full, monkeypatch):
    """A sparse file of 200 GB takes no disk space; reading it raises MemoryError or needs more memory than exists."""
    from tfprep.builder.shards import inputs

    real = inputs.read_files

    def read(root, names, entry, *options):
        if entry.files[0] == "train/cat/000.jpg":
            raise MemoryError
        return real(root, names, entry, *options)

    monkeypatch.setattr(inputs, "read_files", read)
    assert full.build().rejects == 1
    (reject,) = full.rejects()
    assert (reject["key"], reject["stage"]) == ("train/cat/000.jpg", "read")
    assert reject["error"] == "its files do not fit into memory"


def test_rejects_are_utf8_for_any_file_name(full):
    bad = full.data / "train/cat" / os.fsdecode(b"bad\xff.jpg")
    bad.write_bytes(b"")
    assert full.build().rejects == 1
    (reject,) = [json.loads(line) for line in (full.out / "rejects.jsonl").read_bytes().decode("utf-8").splitlines()]
    assert reject["key"] == "train/cat/bad\\xff.jpg"
    assert reject["file"] == "train/cat/bad\\xff.mask.png"


def test_a_colour_function_that_changes_the_shape(full):
    full.change_recipe("RECIPE = Recipe(", "def smaller(image, generator):\n    return image[:5]\n\nRECIPE = Recipe(")
    full.change_recipe("colour=[", "colour=[smaller, ")
    summary = full.build(max_bad=1)
    assert (summary.samples, summary.rejects) == (6, 24)  # Validation has no augmented variants.
    assert {reject["error"] for reject in full.rejects()} == {
        "a colour op returns uint8 (16, 20, 3), this one returned uint8 (5, 20, 3)"
    }
    assert {(reject["stage"], reject["field"]) for reject in full.rejects()} == {("colour", "colour/smaller/0")}


def test_samples_of_another_form_are_rejected_in_every_shard(full):
    """One 16-bit mask among 8-bit ones: the form of most samples is that of the dataset, and the others are rejected by name."""
    full.change_recipe('classes=("ground", "thing", "void")', "")
    full.change_recipe('mask="{split}/{label}/*.mask.png", ', 'mask="{split}/{label}/*.mask.png"')
    odd = ["train/cat/000", "train/dog/001", "val/cat/000"]
    for key in odd:
        Image.fromarray(np.full((24, 28), 7, np.uint16)).save(full.data / f"{key}.mask.png")
    summary = full.build()
    assert (summary.samples, summary.rejects) == (27, 3)
    assert sorted(reject["key"] for reject in full.rejects()) == [f"{key}.jpg" for key in odd]
    assert {reject["error"] for reject in full.rejects()} == {
        "it is mask of uint16 [H, W], most samples have mask of uint8 [H, W]; a field has one dtype and rank in a dataset, "
        "and an image one number of channels"
    }
    check_whole(full.out)
    full.build(full.out.with_name("two"), workers=2)
    assert digests(full.out) == digests(full.out.with_name("two"))
    assert full.build().built_shards == 0
    for key in odd[:2]:
        Image.fromarray(np.full((24, 28), 1, np.uint8)).save(full.data / f"{key}.mask.png")
    assert full.build().rejects == 1
    assert digests(full.out) == full.from_nothing()
    for path in full.data.rglob("*.mask.png"):
        Image.fromarray(np.full((24, 28), 7, np.uint16)).save(path)
    Image.fromarray(np.full((24, 28), 1, np.uint8)).save(full.data / "val/cat/000.mask.png")
    assert [reject["key"] for reject in full.rejects()] == ["val/cat/000.jpg"]
    full.build()
    assert [reject["key"] for reject in full.rejects()] == ["val/cat/000.jpg"]
    assert digests(full.out) == full.from_nothing("again")


def test_on_bad_fail_stops_at_the_first_by_name(full):
    full.add("train/cat/bad", 1).write_bytes(b"")
    for workers in (0, 2):
        with pytest.raises(BuildError, match=r"train/cat/bad.jpg: decode of 'image': the file is empty \(0 bytes\)"):
            full.build(on_bad="fail", workers=workers)
    assert not (full.out / "tfprep.json").exists()
    assert full.build().rejects == 1


def test_more_rejects_than_allowed_publish_nothing(full):
    full.build()
    before = digests(full.out)
    for number in range(3):
        full.add(f"train/cat/bad{number}", number).write_bytes(b"")
    with pytest.raises(TooManyRejectsError, match=r"3 of 33 samples were rejected, at most 5% may be; "
                       r"nothing was published. Most often \(3 times\): decode: the file is empty"):  # fmt: skip
        full.build(max_bad=0.05)
    assert len((full.out / ".tfprep/rejects.jsonl").read_text().splitlines()) == 3
    assert digests(full.out) == before, "the list of the dataset that stays is not touched"
    check_whole(full.out)
    assert full.build(max_bad=0.1).rejects == 3


def test_a_build_with_only_rejects_raises(site):
    site.change_recipe(', "val": 2', "")
    for number in range(3):
        site.add(f"train/cat/{number}", number).write_bytes(b"")
    with pytest.raises(TooManyRejectsError, match=r"3 of 3 samples were rejected"):
        site.build()


def test_all_readable_formats_are_converted(site):
    """Several formats with the same suffix: each as Pillow converts it, stored without loss."""
    site.recipe.write_text(
        "from tfprep import Recipe, codecs, sources\n"
        'RECIPE = Recipe("all", sources.Folder("*"), {"image": codecs.Png()})'
    )
    rng = np.random.default_rng(0)
    rgb = Image.fromarray(rng.integers(0, 256, (24, 28, 3), np.uint8))
    gray16 = rng.integers(0, 65536, (24, 28)).astype(np.uint16)
    files = {
        "gray.png": rgb.convert("L"), "palette.png": rgb.convert("P"), "alpha.png": rgb.convert("RGBA"),
        "bits.png": rgb.convert("1"), "gray16.png": Image.fromarray(gray16), "bmp.bmp": rgb, "gif.gif": rgb.convert("P"),
        "tiff.tiff": rgb, "cmyk.tiff": rgb.convert("CMYK"), "ppm.ppm": rgb,
    }  # fmt: skip
    for name, image in files.items():
        image.save(site.data / name)
    rgb.convert("CMYK").save(site.data / "cmyk.jpg")
    rgb.save(site.data / "webp.webp", lossless=True)
    Image.fromarray(np.dstack([np.asarray(rgb), np.asarray(rgb)[:, :, :1]])).save(site.data / "transparent.png")
    cv2.imwrite(str(site.data / "deep.png"), np.asarray(rgb)[:, :, ::-1].astype(np.uint16) * 257)
    assert site.build().rejects == 3
    rejects = [json.loads(line) for line in (site.out / "rejects.jsonl").read_text().splitlines()]
    reasons = {reject["key"]: reject["error"] for reject in rejects}
    assert "the image has transparent pixels, which 8-bit RGB cannot hold" in reasons.pop("transparent.png")
    assert all("16 bits a channel, of which 8 would be lost" in reason for reason in reasons.values())
    data = open_dataset(site.out)
    keys = data.index("train")["key"].to_pylist()
    stored = dict(zip(keys, (sample["image"] for sample in data.samples("train")), strict=True))
    assert len(stored) == 11
    for name, pixels in stored.items():
        with Image.open(site.data / name) as image:
            expected = np.asarray(image.convert("RGB"))
        np.testing.assert_array_equal(pixels, expected, err_msg=name)


def test_a_module_that_is_missing_ends_the_build_and_is_no_fault_of_the_samples(full):
    full.change_recipe("RECIPE = Recipe(", "def f(sample, generator):\n    import not_there\n\nRECIPE = Recipe(")
    full.change_recipe("derive={", 'derive={"f": f, ')
    with pytest.raises(BuildError, match=r"derive of 'f': ModuleNotFoundError: No module named 'not_there'"):
        full.build()

"""Every bad input is rejected by name, with its stage, and affects no other. `tests/images` has the faults of each format."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.builder.conftest import check_whole, digests
from tests.photos import written
from tfprep import Recipe, build, codecs, sources
from tfprep.errors import BuildError, TooManyRejectedError

GOOD = 30


def noise(form: str) -> bytes:
    return written(np.random.default_rng(0).integers(0, 256, (24, 28, 3), np.uint8), form)


def frames() -> bytes:
    images = [Image.new("RGB", (28, 24), color) for color in ("red", "green", "blue")]
    return written(images[0], "TIFF", save_all=True, append_images=images[1:])


IMAGE, MASK = ".jpg", ".mask.png"


def content(data: bytes, suffix: str = IMAGE):
    return lambda place: Path(f"{place}{suffix}").write_bytes(data)


def gone(suffix: str, make=lambda path: None):
    """Puts something else in the place of a file."""

    def change(place):
        path = Path(f"{place}{suffix}")
        path.unlink()
        make(path)

    return change


def dangling(path):
    path.symlink_to("nowhere.png")


def mask_of(*shape, value=0):
    return lambda place: Image.fromarray(np.full(shape, value, np.uint8)).save(f"{place}{MASK}")


def level(number: int):
    """A plain image, for which the function of the recipe runs the line of this number."""
    return lambda place: Image.fromarray(np.full((24, 28, 3), 20 * number + 10, np.uint8)).save(f"{place}{IMAGE}")


LINES = [
    "raise ValueError('no luck')", "raise SystemExit('stop')", "return np.ones((1 << 60,), np.uint8)",
    "raise ValueError('x' * 5000)",
]  # fmt: skip
NO_FILE = "cannot read the file: No such file or directory"
BAD = [
    (content(b""), "decode", "image", "the file is empty (0 bytes)", IMAGE),
    (content(b"this is text"), "decode", "image", "not an image: no known format begins with the bytes b'this is '", IMAGE),
    (content(noise("JPEG")[:-60]), "decode", "image", "not a whole", IMAGE),
    (content(noise("PNG")[:900]), "decode", "image", "not a whole image: ", IMAGE),
    (content(frames()), "decode", "image",
     "TIFF holds 3 frames, expected one image; choose one with sources.Pixels(p", IMAGE),
    (content(written(np.zeros((24, 28), np.float32), "TIFF")), "decode", "image",
     "an image of 32-bit floats", IMAGE),
    (gone(MASK), "read", "mask", NO_FILE, MASK),
    (gone(MASK, dangling), "read", "mask", NO_FILE, MASK),
    (gone(IMAGE, dangling), "read", "image", NO_FILE, IMAGE),
    (gone(MASK, Path.mkdir), "read", "mask", "cannot read the file: not a regular file", MASK),
    (gone(MASK, os.mkfifo), "read", "mask", "cannot read the file: not a regular file", MASK),
    (mask_of(24, 29), "decode", "", "images, masks and maps of one sample have one size; image is 28 x 24, mask", None),
    (mask_of(24, 28, value=3), "decode", "mask", "class 3 is outside the list of 3 classes", MASK),
    (mask_of(24, 28, 3), "decode", "mask", "a mask has one channel of class numbers, this one is RGB (3 channels)", None),
    (content(b"class 1 everywhere", MASK), "decode", "mask", "not an image", None),
    (level(0), "derive", "made", "ValueError: no luck", None),
    (level(1), "derive", "made", "SystemExit: stop", None),
    (level(2), "derive", "made", "MemoryError: ", None),
    (level(3), "derive", "made", "ValueError: " + "x" * 988 + "... (5012 characters)", None),
]  # fmt: skip
"""What happens to a sample; stage, field and reason of the rejection, and the file that it names if the test compares it."""


def test_bad_samples_are_named(full):
    """The images of samples for which the user's function fails are plain; the masks of all others are as they were."""
    full.change_recipe("color=[augment.Brightness(0.2)],", "")
    ways = "".join(f"    if level == {number}:\n        {line}\n" for number, line in enumerate(LINES))
    full.derive(
        "made",
        "low, level = sample['image'].min(), sample['image'].max()\n"
        "level = int(level) // 20 if level - low < 3 else -1\n"
        f"if level >= 0:\n{ways}"
        "return sample['mask'].astype(np.float32)",
        "codecs.Raw()",
    )
    for number, (change, *_) in enumerate(BAD):
        full.add(f"train/cat/bad{number:02}", 1)
        change(full.data / f"train/cat/bad{number:02}")
    summary = full.build(max_bad=1)
    assert (summary.samples, summary.rejected) == (GOOD, len(BAD))
    for number, (sample, (_, stage, field, reason, file)) in enumerate(zip(full.rejected(), BAD, strict=True)):
        name = f"train/cat/bad{number:02}"
        found = (sample["key"], sample["split"], sample["stage"], sample["field"])
        assert found == (f"{name}.jpg", "train", stage, field), sample
        assert sample["error"].startswith(reason), sample["error"]
        assert sample["file"] == (f"{name}{file}" if file else sample["file"])


def test_rejected_samples_are_utf8_for_any_file_name(full):
    (full.data / "train/cat" / os.fsdecode(b"bad\xff.jpg")).write_bytes(b"")
    assert full.build().rejected == 1
    (sample,) = full.rejected()
    assert (sample["key"], sample["file"]) == ("train/cat/bad\\xff.jpg", "train/cat/bad\\xff.mask.png")


def test_a_record_that_no_reader_takes_is_rejected(full, monkeypatch):
    monkeypatch.setattr("tfprep.builder.shard.MOST_RECORD", 100)
    with pytest.raises(TooManyRejectedError, match=r"a record has less than 2 GiB, not [0-9,]+ bytes"):
        full.build()


def test_samples_of_another_form_are_rejected_in_every_shard(full):
    """One 16-bit mask among 8-bit ones: the form of most samples is that of the dataset, and the others are rejected by name."""
    full.change_recipe(', classes=("ground", "thing", "void")', "")
    odd = ["train/cat/000", "train/dog/001", "val/cat/000"]
    for key in odd:
        full.mask(key, 7, np.uint16)
    summary = full.build()
    assert (summary.samples, summary.rejected) == (27, 3)
    assert [sample["key"] for sample in full.rejected()] == [f"{key}.jpg" for key in odd]
    assert {sample["error"] for sample in full.rejected()} == {
        "it is mask of uint16 [H, W], most samples have mask of uint8 [H, W]; a field has one dtype and rank in a dataset, "
        "an image one number of channels, and points one of columns"
    }
    check_whole(full.out)
    full.build(full.out.with_name("two"), workers=2)
    assert digests(full.out) == digests(full.out.with_name("two"))
    assert full.build().built_shards == 0
    for key in odd[:2]:
        full.mask(key, 1)
    assert full.build().rejected == 1
    assert digests(full.out) == full.from_nothing()
    for path in full.data.rglob("*.mask.png"):
        full.mask(str(path.relative_to(full.data)).removesuffix(MASK), 7, np.uint16)
    full.mask("val/cat/000", 1)
    full.build()
    assert [sample["key"] for sample in full.rejected()] == ["val/cat/000.jpg"]
    assert digests(full.out) == full.from_nothing()


def test_on_bad_fail_stops_at_the_first_by_name(full):
    full.add("train/cat/bad", 1).write_bytes(b"")
    for workers in (0, 1):
        with pytest.raises(BuildError, match=r"train/cat/bad.jpg: decode of 'image': the file is empty \(0 bytes\)"):
            full.build(on_bad="fail", workers=workers)
    assert not (full.out / "tfprep.json").exists()
    assert full.build().rejected == 1
    with pytest.raises(TooManyRejectedError, match="1 of 31 samples were rejected, at most 0% may be"):
        full.build(on_bad="fail")  # of shards that are up to date


def test_more_rejected_samples_than_allowed_publish_nothing(full):
    full.build()
    before = digests(full.out)
    for number in range(3):
        full.add(f"train/cat/bad{number}", number).write_bytes(b"")
    with pytest.raises(TooManyRejectedError, match=r"3 of 33 samples were rejected, at most 5% may be; "
                       r"nothing was published. Most often \(3 times\): decode: the file is empty"):  # fmt: skip
        full.build(max_bad=0.05)
    assert len((full.out / ".tfprep/rejects.jsonl").read_text().splitlines()) == 3
    assert digests(full.out) == before, "the list of the dataset that stays is not touched"
    check_whole(full.out)
    assert full.build(max_bad=0.1).rejected == 3


def test_files_that_the_decoder_warns_about_are_kept_and_listed_or_rejected(full, reports):
    """One without its end marker, and one that is damaged inside."""
    keys = ["train/cat/000.jpg", "train/dog/001.jpg"]
    cut, damaged = (full.data / key for key in keys)
    cut.write_bytes(cut.read_bytes()[:-2])
    data = damaged.read_bytes()
    damaged.write_bytes(data[:-60] + data[-2:])
    with pytest.warns(UserWarning, match="2 samples have warnings, such as damaged files"):
        assert full.build().samples == GOOD
    page = (full.out / "current/report.html").read_text()
    assert f"{keys[0]}: image: the end marker of the JPEG is missing" in page
    assert f"{keys[1]}: image: Corrupt JPEG data: premature end of data segment" in page
    summary = full.build(on_warning="reject")
    assert (summary.samples, summary.rejected) == (GOOD - 2, 2)
    assert [(sample["key"], sample["stage"]) for sample in full.rejected()] == [(key, "decode") for key in keys]
    assert full.build(on_warning="reject").built_shards == 0
    assert full.due(on_warning="reject").startswith("nothing to build")
    assert full.due() == "6 of 6 shards: the recipe changed: --on-warning: reject -> keep"
    with pytest.warns(UserWarning, match="2 samples have warnings"):
        assert full.build().samples == GOOD


def test_identifiers_that_float32_rounds_are_a_warning(tmp_path, reports):
    for name in ("a.png", "b.png"):
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    (tmp_path / "table.csv").write_text("image,serial\na.png,16777217.0\nb.png,16777216.5\n")
    source = sources.Table("table.csv", "{image}", fields={"serial": ("scalar", "serial")})
    recipe = Recipe("r", source, {"image": codecs.Png(), "serial": codecs.Scalar()})
    with pytest.warns(UserWarning, match="1 samples have warnings"):
        summary = build(recipe, tmp_path / "out", tmp_path)
    assert (summary.samples, summary.rejected) == (2, 0)
    page = (tmp_path / "out/current/report.html").read_text()
    assert "a.png: serial: float32 stores the whole number 16777217 as 16777216" in page

"""Thousands of damaged image files are built and read back: no crash, no hang, no traceback, bounded memory.

Run: python benchmarks/fuzz.py images [--count 10000] [--seed 0] [--json FILE]

Valid JPEG, PNG, GIF, TIFF, WebP, BMP, AVIF, JPEG 2000 and 16-bit files, each in several forms, are damaged at random positions,
headers included: bytes are flipped, cut, repeated, removed or filled. The checksums of PNG files are corrected in half of the
cases, so that decoders read past them. Batches of `--count` files in total are built as images, or as masks of themselves, and
stored as PNG, as JPEG or as the original bytes. All processes run with RLIMIT_AS.

After each batch the script asserts that images + rejected = inputs, that each reason is an error of tfprep, that no worker died
and no sample reached its time limit, and reads the records back. Images that were stored without loss are decoded once more and
compared, because memory that a decoder leaves unwritten differs from process to process. Reading an `Original` record may raise
tfprep's error, since a build does not decode it. A batch that breaks a rule stays in the folder that is printed.
"""

from __future__ import annotations

import io
import json
import re
import resource
import shutil
import struct
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import harness
import numpy as np
import tifffile
from PIL import Image

from tfprep import Recipe, codecs, images, sources
from tfprep.builder import BuildEvent, BuildOptions, build
from tfprep.dataset import open_dataset
from tfprep.errors import TooManyRejectedError

BATCH = 500
TIMEOUT_S = 20.0
MEMORY_BYTES = 3_000_000_000
"""Address space of each process."""
STORED_AS = (codecs.Png(0), codecs.Png(0), codecs.Jpeg(95), codecs.Original())
FOREIGN_ERROR = re.compile(r"[A-Z]\w*(Error|Exception|Interrupt|Exit)\b: ")
"""Matches the beginning of a rejection whose exception is not tfprep's."""


def run(options: Any) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    folder = Path(tempfile.mkdtemp(prefix="tfprep-fuzz-"))
    rng = np.random.default_rng(options.seed)
    originals = list(seeds(rng))
    print(f"{len(originals)} undamaged files: {', '.join(sorted({suffix for suffix, _ in originals}))}")
    total: Counter[str] = Counter()
    started = time.monotonic()
    while total["files"] < options.count:
        total.update(one_batch(folder, originals, rng, options.count - total["files"]))
    shutil.rmtree(folder)
    seconds = time.monotonic() - started
    print(
        f"seed {options.seed}: {total['files']} files in {seconds:.0f} s: "
        f"{total['images']} images, {total['rejected']} rejected, "
        "0 refused when read, 0 crashes, 0 hangs, 0 tracebacks"
    )
    harness.finish(options, {**total, "seconds": seconds, "seed": options.seed})


def one_batch(folder: Path, originals: list[tuple[str, bytes]], rng: np.random.Generator, most: int) -> Counter[str]:
    """Builds one batch and checks it. A failed check raises AssertionError and leaves the files for a look at them."""
    data, out = folder / "data", folder / "out"
    for path in (data, out):
        shutil.rmtree(path, ignore_errors=True)
    data.mkdir()
    count = min(BATCH, most)
    for number in range(count):
        name, content = originals[rng.integers(len(originals))]
        (data / f"{number:05d}.{name}").write_bytes(damaged(content, rng))
    as_mask = rng.random() < 0.3
    names = sorted(path.name for path in data.iterdir())
    (data / "table.csv").write_text("".join(f"{line}\n" for line in ("path", *names)))
    fields = {"copy": ("mask", "path")} if as_mask else {}
    source = sources.Table("table.csv", image="path", fields=fields)
    stored_as = STORED_AS[rng.integers(len(STORED_AS))]
    store = {"image": stored_as, **({"copy": codecs.Raw()} if as_mask else {})}
    events: list[BuildEvent] = []
    options = BuildOptions(workers=2, item_timeout_s=TIMEOUT_S)
    try:
        summary = build(Recipe("fuzz", source, store), out, data, options=options, on_event=events.append)
    except TooManyRejectedError:
        return Counter(files=count, rejected=count)
    where = f"see {data}"
    crashes = [event.text for event in events if event.name == "crash"]
    assert not crashes, f"{crashes}; {where}"
    assert summary.samples + summary.rejected == count, f"{summary}; {where}"
    rejected = [json.loads(line) for line in (summary.path / "rejects.jsonl").read_text().splitlines()]
    read = open_dataset(out)
    kept = [key for split in read.splits for key in read.index(split)["key"].to_pylist()]
    assert sorted(kept + [sample["key"] for sample in rejected]) == names, where
    assert all(sample["error"] and sample["stage"] for sample in rejected), where
    foreign = [sample["error"] for sample in rejected if FOREIGN_ERROR.match(sample["error"])]
    assert not foreign, f"{foreign}; {where}"
    for split in read.splits:
        keys = read.index(split)["key"].to_pylist()
        for key, sample in zip(keys, read.samples(split), strict=True):  # what a build accepts can be read
            again = decoded_again(data / key)
            lossless = isinstance(stored_as, codecs.Png)
            assert not lossless or np.array_equal(sample["image"], again), (
                f"{key} is decoded differently each time; {where}"
            )
    return Counter(files=count, images=summary.samples, rejected=summary.rejected)


def decoded_again(path: Path) -> np.ndarray:
    """The image decoded in this process, whose freed memory holds ones: pixels that no decoder wrote differ from the build's."""
    for size in (1 << 12, 1 << 15, 1 << 18):
        np.ones(size, np.uint8)
    return images.decode_image(path.read_bytes())


# --- files ------------------------------------------------------------------------------------------------------------


def seeds(rng: np.random.Generator) -> Iterator[tuple[str, bytes]]:
    """Yields (suffix, content) of undamaged files."""
    for size in ((7, 5), (33, 48), (120, 90)):
        rgb = Image.fromarray(rng.integers(0, 256, (*size, 3), np.uint8)).resize(size).convert("RGB")
        exif = Image.Exif()
        exif[0x0112] = int(rng.integers(1, 9))
        for form, image, options in (
            ("JPEG", rgb, {"exif": exif}), ("JPEG", rgb, {"progressive": True}), ("JPEG", rgb.convert("L"), {}),
            ("JPEG", rgb.convert("CMYK"), {}), ("PNG", rgb, {"exif": exif}), ("PNG", rgb.convert("L"), {}),
            ("PNG", rgb.quantize(30), {"transparency": 3}), ("PNG", rgb.convert("RGBA"), {}), ("PNG", rgb.convert("1"), {}),
            ("PNG", rgb.convert("L").convert("I;16"), {}), ("GIF", rgb.quantize(60), {}),
            ("GIF", rgb, {"save_all": True, "append_images": [rgb.rotate(90)]}), ("TIFF", rgb, {"exif": exif}),
            ("TIFF", rgb, {"compression": "tiff_lzw"}), ("TIFF", rgb, {"compression": "jpeg"}),
            ("TIFF", rgb.convert("1"), {"compression": "group4"}), ("WEBP", rgb, {}), ("WEBP", rgb, {"lossless": True}),
            ("BMP", rgb, {}), ("BMP", rgb.quantize(16), {}), ("PPM", rgb, {}), ("AVIF", rgb, {}), ("JPEG2000", rgb, {}),
        ):  # fmt: skip
            file = io.BytesIO()
            try:
                image.save(file, form, **options)
            except (OSError, ValueError, KeyError):  # Pillow was built without this format
                continue
            yield {"JPEG": "jpg", "JPEG2000": "jp2"}.get(form, form.lower()), file.getvalue()
        yield from deep_seeds(size, rng)


def deep_seeds(size: tuple[int, int], rng: np.random.Generator) -> Iterator[tuple[str, bytes]]:
    """Files with 16 bits per channel: PNG, and TIFF with interleaved, separate, premultiplied and tiled channels."""
    color = rng.integers(0, 65536, (*size, 4)).astype(np.uint16)
    for channels in (3, 4):
        yield "png", cv2.imencode(".png", color[:, :, :channels])[1].tobytes()
    for array, options in (
        (color[:, :, :3], {}), (color[:, :, :3], {"tile": (16, 16)}), (color[:, :, :3], {"compression": "zlib"}),
        (np.moveaxis(color[:, :, :3], 2, 0), {"planarconfig": "separate"}), (color, {"extrasamples": ["assocalpha"]}),
    ):  # fmt: skip
        file = io.BytesIO()
        tifffile.imwrite(file, array, photometric="rgb", **options)
        yield "tiff", file.getvalue()


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """Damaged content; the checksums of PNG files are right in half of the cases."""
    data = harness.damaged(content, rng)
    return right_checksums(data) if content.startswith(b"\x89PNG") and rng.random() < 0.5 else data


def right_checksums(data: bytes) -> bytes:
    """The PNG with the checksum of each chunk computed from its current content."""
    position, out = 8, bytearray(data[:8])
    while position + 12 <= len(data):
        size = struct.unpack(">I", data[position : position + 4])[0]
        body = data[position + 4 : position + 8 + size]
        if position + 12 + size > len(data):
            break
        out += data[position : position + 4] + body + struct.pack(">I", zlib.crc32(body))
        position += 12 + size
    return bytes(out + data[position:])

"""Thousands of damaged image files through a build: no crash, no hang, none unaccounted for.

    python benchmarks/fuzz_images.py [--files 5000] [--seconds 120] [--seed 0] [--workers 2] [--json FILE]

Real JPEG, PNG, GIF, TIFF, WebP, BMP, AVIF and JPEG 2000 files (written by Pillow, several ways each) are damaged at random:
bytes flipped, cut, repeated, removed, filled; headers, sizes and checksums included (PNG checksums are made right again in
half of the cases, so that the damage gets past them). Batches of them are built as images, and as masks of themselves, until
`--files` or `--seconds` are reached. After each batch images + rejects = inputs, no worker has died, no sample has reached
its time limit, and what was kept decodes from the records. A file that breaks this is kept in the folder that is printed.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import struct
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from tfprep import Recipe, codecs, sources
from tfprep.build import BuildEvent, BuildOptions, build
from tfprep.dataset import Dataset
from tfprep.errors import TooManyRejectsError

BATCH = 500
TIMEOUT_S = 20.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="tfprep-fuzz-"))
    rng = np.random.default_rng(options.seed)
    originals = list(seeds(rng))
    total: Counter[str] = Counter()
    started = time.monotonic()
    while total["files"] < options.files and time.monotonic() - started < options.seconds:
        total.update(one_batch(folder, originals, rng, options.workers))
    shutil.rmtree(folder)
    seconds = time.monotonic() - started
    print(
        f"{total['files']} files in {seconds:.0f} s: {total['images']} images, {total['rejects']} rejects, 0 crashes, 0 hangs"
    )
    if options.json:
        options.json.write_text(json.dumps({**total, "seconds": seconds, "seed": options.seed}, indent=1) + "\n")


def one_batch(folder: Path, originals: list[tuple[str, bytes]], rng: np.random.Generator, workers: int) -> Counter[str]:
    """Build one batch; AssertionError, and the files left where they are, where something is not as it must be."""
    data, out = folder / "data", folder / "out"
    for path in (data, out):
        shutil.rmtree(path, ignore_errors=True)
    data.mkdir()
    for number in range(BATCH):
        name, content = originals[rng.integers(len(originals))]
        (data / f"{number:05d}.{name}").write_bytes(damaged(content, rng))
    as_mask = rng.random() < 0.3
    names = sorted(path.name for path in data.iterdir())
    (data / "table.csv").write_text("".join(f"{line}\n" for line in ("path", *names)))
    fields = {"copy": ("mask", "path")} if as_mask else {}
    source = sources.Table("table.csv", image="path", fields=fields)
    store = {"image": codecs.Png(0), **({"copy": codecs.Raw()} if as_mask else {})}
    events: list[BuildEvent] = []
    options = BuildOptions(workers=workers, item_timeout_s=TIMEOUT_S)
    try:
        summary = build(Recipe("fuzz", source, store), out, data, options=options, on_event=events.append)
    except TooManyRejectsError:
        return Counter(files=BATCH, rejects=BATCH)
    told = f"see {data}"
    crashes = [event.text for event in events if event.name == "crash"]
    assert not crashes, f"{crashes}; {told}"
    assert summary.samples + summary.rejects == BATCH, f"{summary}; {told}"
    rejects = [json.loads(line) for line in (out / "rejects.jsonl").read_text().splitlines()]
    read = Dataset.open(out)
    kept = [key for split in read.splits for key in read.index(split)["key"].to_pylist()]
    assert sorted(kept + [reject["key"] for reject in rejects]) == names, told
    assert all(reject["error"] and reject["stage"] for reject in rejects), told
    assert sum(1 for split in read.splits for _ in read.samples(split)) == summary.samples, told
    return Counter(files=BATCH, images=summary.samples, rejects=summary.rejects)


# --- files ------------------------------------------------------------------------------------------------------------


def seeds(rng: np.random.Generator) -> Iterator[tuple[str, bytes]]:
    """(suffix, content) of whole files."""
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
            except (OSError, ValueError, KeyError):  # this Pillow was built without it
                continue
            yield {"JPEG": "jpg", "JPEG2000": "jp2"}.get(form, form.lower()), file.getvalue()


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    data = bytearray(content)
    for _ in range(int(rng.integers(1, 3))):
        DAMAGES[rng.integers(len(DAMAGES))](data, rng)
    if content.startswith(b"\x89PNG") and rng.random() < 0.5:
        return right_checksums(bytes(data))
    return bytes(data)


def _flip(data: bytearray, rng: np.random.Generator) -> None:
    for _ in range(int(rng.integers(1, 9))):
        if data:
            data[_place(data, rng)] ^= int(rng.integers(1, 256))


def _cut(data: bytearray, rng: np.random.Generator) -> None:
    del data[int(rng.integers(0, len(data) + 1)) :]


def _remove(data: bytearray, rng: np.random.Generator) -> None:
    start = _place(data, rng)
    del data[start : start + int(rng.integers(1, 64))]


def _repeat(data: bytearray, rng: np.random.Generator) -> None:
    start = _place(data, rng)
    data[start:start] = data[start : start + int(rng.integers(1, 64))]


def _fill(data: bytearray, rng: np.random.Generator) -> None:
    start = _place(data, rng)
    stop = min(len(data), start + int(rng.integers(1, 16)))
    data[start:stop] = bytes([int(rng.choice([0, 0x7F, 0x80, 0xFF]))]) * (stop - start)


DAMAGES = (_flip, _flip, _cut, _remove, _repeat, _fill, _fill)


def _place(data: bytearray, rng: np.random.Generator) -> int:
    """Anywhere; every other time in the first 200 bytes, where headers stand."""
    end = min(len(data), 200) if rng.random() < 0.5 else len(data)
    return int(rng.integers(0, max(end, 1)))


def right_checksums(data: bytes) -> bytes:
    """A PNG's chunks with the checksums that belong to what they hold now."""
    place, out = 8, bytearray(data[:8])
    while place + 12 <= len(data):
        size = struct.unpack(">I", data[place : place + 4])[0]
        body = data[place + 4 : place + 8 + size]
        if place + 12 + size > len(data):
            break
        out += data[place : place + 4] + body + struct.pack(">I", zlib.crc32(body))
        place += 12 + size
    return bytes(out + data[place:])


if __name__ == "__main__":
    main()

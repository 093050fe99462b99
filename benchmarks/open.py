"""Time and memory of `tfprep.open` to the first batch in global order, of datasets with up to 10^8 records.

    python benchmarks/open.py [--shards 1640,16400,164000] [--folder FOLDER] [--json FILE]

A shard has 610 records, as one of 64 MiB of raw photos has: 164,000 shards are 10^8 records. The records are small, and most
shards are hard links to another one, so that the disk holds the metadata alone: 4 GB for 10^8 records. `tfprep.json` and
`locations.bin` are those of a build; `index.parquet` has no rows, since a loader that takes all samples does not read it. Each
dataset is opened by a new process. Its memory is its peak, of its own pages and of mapped ones together (Linux). Imports do not
count.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import google_crc32c
import numpy as np
from plan import LOAD, SIDE

from tfprep import codecs, records
from tfprep.dataset import FieldInfo, FileInfo, Manifest, SplitInfo
from tfprep.dataset.digests import FileDigest, digest_of, sha256_of
from tfprep.dataset.locations import row_type
from tfprep.dataset.names import INDEX, LOCATIONS, shard_name
from tfprep.fields import Array, FieldSpec
from tfprep.images import encode_jpeg

RECORDS = 610
MOST_LINKS = 20_000
"""ext4 allows 65,000 hard links to a file."""
FIELDS = {
    "image": FieldInfo(FieldSpec("image", (SIDE, SIDE, 3), "uint8"), codecs.Jpeg().describe()),
    "label": FieldInfo(FieldSpec("label", (), "int64"), codecs.Scalar().describe()),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", default="1640,16400,164000", help="Numbers of shards, comma-separated")
    parser.add_argument("--folder", type=Path, help="Folder for scratch files [default: that for temporary files]")
    parser.add_argument("--json", type=Path, help="File for the results")
    options = parser.parse_args()
    rows = [measure(int(shards), options.folder) for shards in options.shards.split(",")]
    for row in rows:
        print("  ".join(f"{name} {value:,.2f}".removesuffix(".00") for name, value in row.items()))
    if options.json:
        options.json.write_text(json.dumps({name: [row[name] for row in rows] for name in rows[0]}, indent=1) + "\n")


def measure(shards: int, folder: Path | None) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        write_dataset(Path(temporary), shards)
        output = subprocess.run([sys.executable, "-c", LOAD, temporary], check=True, stdout=subprocess.PIPE, text=True)
    seconds, megabytes = map(float, output.stdout.split())
    return {"records": shards * RECORDS, "shards": shards, "open_s": seconds, "open_mb": megabytes}


def write_dataset(out: Path, shards: int) -> None:
    """Write a dataset of equal shards."""
    frame, rows = one_shard()
    content = rows.tobytes()
    files = tuple(write_shards(out, shards, frame * RECORDS))
    with (out / LOCATIONS).open("wb") as file:
        for _ in files:
            file.write(content)
    (out / INDEX).touch()
    split = SplitInfo(shards * RECORDS, (files,), ((google_crc32c.value(content),) * shards,))
    # A loader compares the locations by shard: the digest of the whole file is for `tfprep verify`.
    digests = {INDEX: digest_of(out / INDEX), LOCATIONS: FileDigest(shards * len(content), 0, "0" * 64)}
    (out / "tfprep.json").write_text(Manifest("bench", "", {}, FIELDS, {"train": split}, files=digests).to_json())


def one_shard() -> tuple[bytes, Array]:
    """Return the frame that a shard consists of, and the rows of the shard's locations."""
    pixels = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    payload, spans = records.encode({"image": encode_jpeg(pixels, 95, "420"), "label": np.zeros(1, np.int64)})
    frame = records.frame(payload)
    rows = np.zeros(RECORDS, row_type(FIELDS))
    rows["offset"], rows["size"] = np.arange(RECORDS) * len(frame), len(frame)
    rows["payload_crc"] = int.from_bytes(frame[-4:], "little")
    for name in FIELDS:
        rows[f"{name}_offset"], rows[f"{name}_size"] = 12 + spans[name].offset, spans[name].size
    return frame, rows


def write_shards(out: Path, shards: int, content: bytes) -> list[FileInfo]:
    first, digest, files = out, "", []
    for shard in range(shards):
        name = shard_name("bench", "train", 0, shard, shards)
        if shard % MOST_LINKS:
            os.link(first, out / name)
        else:
            first = out / name
            first.write_bytes(content)
            digest = digest or sha256_of(first)
        files.append(FileInfo(name, RECORDS, len(content), digest))
    return files


if __name__ == "__main__":
    main()

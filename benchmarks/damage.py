"""Flips bits in every kind of file of a dataset: `verify` must find each, and `build --verify` must bring the old bytes back.

Readers do not see the notes in `.tfprep`. There, a flip must not get into the dataset: the index is taken away as
well, and must come back with the same bytes. `report.html` may change at any time and is not covered.

python benchmarks/damage.py [--flips 200] [--json FILE]
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

import harness
import numpy as np
from PIL import Image

from tfprep.builder import BuildOptions, build
from tfprep.dataset import open_dataset
from tfprep.dataset.verify import verify
from tfprep.errors import BuildError

RECIPE = """
from tfprep import Recipe, augment, codecs, sources
RECIPE = Recipe(name="tiny", source=sources.Folder("{split}/{label}/**"), geometry=[augment.Flip(p=0.5)],
                store={"image": codecs.Png(), "label": codecs.Scalar()}, shards={"train": 2, "val": 1}, variants={"train": 2})
"""


def write_raw(root: Path) -> None:
    for number in range(9):
        path = root / "raw" / ("val" if number > 6 else "train") / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(number).integers(0, 256, (12, 14, 3), np.uint8)).save(path)
    (root / "raw" / "train" / "a" / "broken.png").write_bytes(b"no image")
    (root / "recipe.py").write_text(RECIPE)


def one_of_each_kind(out: Path) -> dict[str, Path]:
    """The files by kind: a shard, one of an augmented variant, their text index, and each of the others."""
    out = open_dataset(out).path
    names = sorted(path.name for path in out.iterdir() if path.is_file() and path.name != "report.html")
    shards = [name for name in names if ".tfrecord" in name]
    chosen = {
        "shard": next(name for name in shards if not name.endswith(".idx")),
        "shard of a variant": next(name for name in shards if "_v1" in name and not name.endswith(".idx")),
        "text index": next(name for name in shards if name.endswith(".idx")),
        **{name: name for name in names if name not in shards},
    }
    return {kind: out / name for kind, name in chosen.items()}


def mend(out: Path) -> Path:
    """Build the damaged files again, and return the folder of the version that has them."""
    for _ in range(2):  # a damaged receipt is withdrawn by the first run
        with suppress(BuildError):
            build(out.parent / "recipe.py", out, out.parent / "raw", options=BuildOptions(workers=0, verify=True))
    return open_dataset(out).path


def index_survives(out: Path, receipt: str, rng: np.random.Generator) -> bool:
    """Flip a bit of a receipt, take the index away, return True if a build brings the same index back."""
    path, index = out / ".tfprep" / "receipts" / receipt, open_dataset(out).path / "index.parquet"
    note, expected = path.read_bytes(), index.read_bytes()
    other = path.with_name(receipt.replace(".contents", ""))
    also = other.read_bytes()
    place = int(rng.integers(len(note)))
    path.write_bytes(note[:place] + bytes([note[place] ^ 1 << int(rng.integers(8))]) + note[place + 1 :])
    index.unlink()
    same = (mend(out) / "index.parquet").read_bytes() == expected
    other.write_bytes(also)  # it is withdrawn when its rows are damaged
    path.write_bytes(note)
    return same


def main() -> None:
    options = harness.arguments(__doc__, flips=(200, "Number of flips in each kind of file"))
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_raw(root)
        build(root / "recipe.py", root / "out", root / "raw", options=BuildOptions(workers=0))
        rng = np.random.default_rng(0)
        kinds = {kind: (path.name, path.read_bytes()) for kind, path in one_of_each_kind(root / "out").items()}
        for kind, (name, content) in kinds.items():
            found = mended = 0
            for _ in range(options.flips):
                path = open_dataset(root / "out").path / name
                place = int(rng.integers(len(content)))
                flipped = bytes([content[place] ^ 1 << int(rng.integers(8))])
                path.write_bytes(content[:place] + flipped + content[place + 1 :])
                found += any(True for _ in verify(root / "out"))
                mended += (mend(root / "out") / name).read_bytes() == content
            print(f"{kind}: {found} of {options.flips} flips found, {mended} mended to the same bytes", flush=True)
            results[kind] = {"flips": options.flips, "found": found, "mended": mended}
        for name in ("train-00000.json", "train-00000.contents.json"):
            kept = sum(index_survives(root / "out", name, rng) for _ in range(options.flips))
            print(f".tfprep/receipts/{name}: {kept} of {options.flips} flips kept out of the dataset", flush=True)
            results[name] = {"flips": options.flips, "kept_out": kept}
    harness.finish(options, results)


if __name__ == "__main__":
    main()

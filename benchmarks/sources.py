"""Time and memory of listing a source, by number of files.

Run: python benchmarks/sources.py [--files 100000 1000000] [--json FILE]

The script writes a tree of empty files to a temporary folder, 1,000 per class folder and a mask for each, and a CSV file with the
same number of rows. Each source lists them in a new process, which iterates over the entries and keeps none. Memory is the growth
of the peak resident size over that of the process after its imports.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tfprep import sources

FRACTIONS = sources.Fractions(train=0.8, val=0.2)
STRATIFIED = sources.Fractions(train=0.8, val=0.2, stratify="label")
SOURCES: dict[str, sources.Source] = {
    "Folder": sources.Folder("images/{label}/**"),
    "Folder, fractions": sources.Folder("images/{label}/**", splits=FRACTIONS),
    "Folder, stratified": sources.Folder("images/{label}/**", splits=STRATIFIED),
    "Folder, one folder of all": sources.Folder("flat/*", splits=FRACTIONS),
    "Paired": sources.Paired("images/*/*.jpg", "masks/*/*.png"),
    "Paired, one folder of all": sources.Paired("flat/*.jpg", "flatmasks/*.png"),
    "Table": sources.Table("rows.csv", "path", "label"),
    "Table, stratified": sources.Table("rows.csv", "path", "label", splits=STRATIFIED),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, nargs="+", default=[100_000], help="Numbers of files")
    parser.add_argument("--json", type=Path, help="File for the results")
    parser.add_argument("--one", nargs=2, metavar=("SOURCE", "ROOT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(listed(SOURCES[options.one[0]], Path(options.one[1]))))
        return
    results = [result for files in options.files for result in measured(files)]
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


def measured(files: int) -> list[dict[str, object]]:
    results = []
    with tempfile.TemporaryDirectory() as root:
        make_tree(Path(root), files)
        for name in SOURCES:
            process = subprocess.run([sys.executable, __file__, "--one", name, root], check=True, capture_output=True)
            result = {"source": name, "files": files, **json.loads(process.stdout)}
            print(f"{name:28} {result['entries']:>9,} entries {result['seconds']:7.2f} s {result['grown_mb']:6.0f} MB")
            results.append(result)
    return results


def make_tree(root: Path, files: int) -> None:
    for folder in ("flat", "flatmasks"):
        (root / folder).mkdir()
    with (root / "rows.csv").open("w") as table:
        table.write("path,label\n")
        for i in range(files):
            label, name = f"class_{i // 1000:05d}", f"photo_{i:09d}"
            if i % 1000 == 0:
                for folder in ("images", "masks"):
                    (root / folder / label).mkdir(parents=True)
            for path in (
                f"images/{label}/{name}.jpg",
                f"masks/{label}/{name}.png",
                f"flat/{name}.jpg",
                f"flatmasks/{name}.png",
            ):
                (root / path).touch()
            table.write(f"images/{label}/{name}.jpg,{label}\n")


def listed(source: sources.Source, root: Path) -> dict[str, float]:
    before = peak_mb()
    start = time.perf_counter()
    entries = sum(1 for _ in source.scan(root).entries)
    return {"entries": entries, "seconds": time.perf_counter() - start, "grown_mb": peak_mb() - before}


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()

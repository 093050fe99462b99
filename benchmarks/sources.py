"""Time and memory of listing a source, by number of files.

Run: python benchmarks/sources.py [--files 100000 1000000] [--only Archives ...] [--json FILE]

The script writes a tree of empty files to a temporary folder, 1,000 per class folder and a mask for each, and a CSV file with the
same number of rows; and two tar files of as many members of 1 KiB, one of images, the other of images and their labels in turn.
Each source lists them in a new process, which iterates over the entries and keeps none. Memory is the growth of the peak resident
size over that of the process after its imports.
"""

from __future__ import annotations

import argparse
import io
import json
import resource
import subprocess
import sys
import tarfile
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
    "Archives": sources.Archives("images.tar"),
    "Archives, labels": sources.Archives("labels.tar", label="cls"),
    "Table, stratified": sources.Table("rows.csv", "path", "label", splits=STRATIFIED),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, nargs="+", default=[100_000], help="Numbers of files")
    parser.add_argument("--only", nargs="+", choices=SOURCES, default=list(SOURCES), help="Sources to measure")
    parser.add_argument("--json", type=Path, help="File for the results")
    parser.add_argument("--one", nargs=2, metavar=("SOURCE", "ROOT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(listed(SOURCES[options.one[0]], Path(options.one[1]))))
        return
    results = [result for files in options.files for result in measured(files, options.only)]
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


def measured(files: int, names: list[str]) -> list[dict[str, object]]:
    results = []
    with tempfile.TemporaryDirectory() as root:
        if any(not isinstance(SOURCES[name], sources.Archives) for name in names):
            make_tree(Path(root), files)
        if any(isinstance(SOURCES[name], sources.Archives) for name in names):
            make_archives(Path(root), files)
        for name in names:
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


def make_archives(root: Path, members: int) -> None:
    for name in ("images", "labels"):
        with tarfile.open(root / f"{name}.tar", "w") as archive:
            for i in range(members):
                ending = "cls" if name == "labels" and i % 2 else "jpg"
                content = f"class_{i // 2000}".encode() if ending == "cls" else bytes(1024)
                info = tarfile.TarInfo(f"{i // (2 if name == 'labels' else 1):09d}.{ending}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            archive.members = []


def listed(source: sources.Source, root: Path) -> dict[str, float]:
    before = peak_mb()
    start = time.perf_counter()
    entries = sum(1 for _ in source.scan(root).entries)
    return {"entries": entries, "seconds": time.perf_counter() - start, "grown_mb": peak_mb() - before}


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()

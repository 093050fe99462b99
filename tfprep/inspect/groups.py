"""Samples that seem to belong together and are in several splits: a suspicion, which the distance of their pictures supports.

Samples are grouped by the folder of their key, by the prefix of their file name before its last number (frames of one video), and
by camera and time of their EXIF data. A split's own folder does not count, and neither does a folder or prefix that is a class.
"""

from __future__ import annotations

import io
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np
from PIL import Image

from tfprep.dataset import Dataset
from tfprep.inspect.fingerprints import Fingerprints
from tfprep.storage.urls import open_file

GroupKind = Literal["folder", "prefix", "camera and time"]

_PREFIX = r"([^/]*?)[_. -]*\d+\.\w+$"
_GROUP_BY = {"prefix": _PREFIX, "folder": r"^(.*)/"}
_MOST_PAIRS = 2000
"""Pairs whose hashes are compared for a median: its standard error is then below 0.2 bits."""
_HEADER_BYTES = 1 << 17
"""EXIF data is in the first 64 KiB segment of a JPEG, which others may precede."""
_MAKE, _MODEL, _EXIF_IFD, _TAKEN, _SUBSECOND = 0x010F, 0x0110, 0x8769, 0x9003, 0x9291


@dataclass(frozen=True)
class Suspicion:
    """Groups of one kind that have members in several splits.

    Attributes:
        kind: How samples were grouped.
        groups: Number of groups of two samples or more.
        straddling: How many of them have members in several splits.
        samples: Number of samples in those.
        examples: The largest of those, with the number of members by split.
        distance: Median distance in bits of the hashes of two members in different splits; None without hashes.
        distance_of_others: The same of two random samples of different splits.
        group_by: What a recipe's `Fractions` could take to keep them together; empty if no expression fits all keys.
    """

    kind: GroupKind
    groups: int
    straddling: int
    samples: int
    examples: Mapping[str, Mapping[str, int]]
    distance: float | None
    distance_of_others: float | None
    group_by: str


def suspected_groups(data: Dataset, prints: Fingerprints, raw: Path | None = None) -> list[Suspicion]:
    """Return the kinds of groups that straddle splits.

    Args:
        data: The dataset.
        prints: Its samples.
        raw: The folder of the raw files, from which EXIF data is read. Without it, EXIF data is that of images which are stored
            by their own bytes.
    """
    if len(prints.splits) < 2:
        return []
    keys = prints.keys.to_pylist()
    classes = {"", *(name for names in data.manifest.classes.values() for name in names)}
    read = _stored_header(data) if raw is None else partial(_raw_header, raw, raw.resolve())
    names_by_kind: dict[GroupKind, list[str | None]] = {"folder": [], "prefix": [], "camera and time": []}
    for row, key in enumerate(keys):
        *folders, name = key.split("/")
        # The folder that is named after the sample's split does not count.
        plain = PurePosixPath(*(part for part in folders if part != prints.name_of_split(row)), name)
        names_by_kind["folder"].append(None if plain.parent.name in classes else str(plain.parent))
        match = re.search(_PREFIX, str(plain))
        names_by_kind["prefix"].append(None if match is None or match[1] in classes else match[1])
        names_by_kind["camera and time"].append(_capture(read(prints, row)) if read else None)
    found = [_suspicion(kind, names, keys, prints) for kind, names in names_by_kind.items()]
    return [one for one in found if one is not None]


def _suspicion(
    kind: GroupKind, names: Sequence[str | None], keys: Sequence[str], prints: Fingerprints
) -> Suspicion | None:
    members: dict[str, list[int]] = defaultdict(list)
    for row, name in enumerate(names):
        if name is not None:
            members[name].append(row)
    groups = {name: rows for name, rows in members.items() if len(rows) > 1}
    splits = prints.split.tolist()
    straddling = {name: rows for name, rows in groups.items() if len({splits[row] for row in rows}) > 1}
    # One folder that holds everything says nothing.
    if not straddling or (len(members) == 1 and None not in names):
        return None
    largest = sorted(straddling, key=lambda name: (-len(straddling[name]), name))[:5]
    regex = _GROUP_BY.get(kind, "")
    fits = bool(regex) and None not in names and all(re.search(regex, key) for key in keys)
    return Suspicion(
        kind=kind,
        groups=len(groups),
        straddling=len(straddling),
        samples=sum(map(len, straddling.values())),
        examples={name: dict(Counter(prints.name_of_split(row) for row in straddling[name])) for name in largest},
        distance=_median_distance(prints, list(straddling.values())),
        distance_of_others=_median_distance(prints, [list(range(len(prints)))]),
        group_by=regex if fits else "",
    )


def _median_distance(prints: Fingerprints, groups: Sequence[Sequence[int]]) -> float | None:
    """Return the median distance of random pairs of one group in different splits."""
    draws = np.random.default_rng(0)
    weights = np.array([len(rows) for rows in groups], np.float64)
    distances = []
    for group in draws.choice(len(groups), _MOST_PAIRS, p=weights / weights.sum()).tolist():
        one, other = draws.choice(groups[group], 2).tolist()
        if prints.split[one] != prints.split[other] and prints.hashed[one] and prints.hashed[other]:
            distances.append(int(prints.hashes[one] ^ prints.hashes[other]).bit_count())
    return float(np.median(distances)) if distances else None


# --- EXIF ------------------------------------------------------------------------------------------------------------


def _raw_header(folder: Path, inside: Path, prints: Fingerprints, row: int) -> bytes:
    path = folder / prints.key(row)
    # Keys come from the dataset, which may be a stranger's: none leads out of the folder.
    if not path.resolve().is_relative_to(inside) or not path.is_file():
        return b""
    with path.open("rb") as file:
        return file.read(_HEADER_BYTES)


def _stored_header(data: Dataset) -> Callable[[Fingerprints, int], bytes] | None:
    """Return a function that reads the first bytes of a stored image; None unless images are stored by their own bytes."""
    field = next((n for n, info in data.manifest.fields.items() if info.codec.get("codec") == "original"), None)
    if field is None:
        return None
    columns = ["shard", f"{field}_offset", f"{field}_size"]
    places = {split: data.index(split, 0, columns) for split in data.splits}

    def read(prints: Fingerprints, row: int) -> bytes:
        split = prints.name_of_split(row)
        shard, offset, size = (places[split][name][int(prints.position[row])].as_py() for name in columns)
        with open_file(data.shard_path(data.file(split, 0, shard))) as file:
            file.seek(offset)
            return file.read(min(size, _HEADER_BYTES))

    return read


def _capture(header: bytes) -> str | None:
    """Return camera and time of an image's first bytes."""
    try:
        with Image.open(io.BytesIO(header), formats=("JPEG", "PNG", "TIFF", "WEBP")) as image:
            exif = image.getexif()
            inner = exif.get_ifd(_EXIF_IFD)
            taken = inner.get(_TAKEN)
            if not taken:
                return None
            parts = (exif.get(_MAKE), exif.get(_MODEL), taken, inner.get(_SUBSECOND))
            return " ".join(str(part).strip("\0 ") for part in parts if part)
    except Exception:  # A header that Pillow cannot read has no EXIF data for us, whatever it raises.
        return None

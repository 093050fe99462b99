"""Finds the text file that gives the classes of the images of a split without class folders, as in ImageNet and tiny-imagenet."""

from __future__ import annotations

import os
from collections.abc import Set as AbstractSet

from tfprep.errors import SourceError
from tfprep.sources.detection.inventory import Inventory
from tfprep.sources.folder import read_labels
from tfprep.sources.patterns import plain


def list_of_labels(tree: Inventory, prefix: str, split: str, classes: AbstractSet[str]) -> str | None:
    """Return the file that has a class for nine in ten of the split's first images at least; None if there is none.

    Args:
        tree: The files.
        prefix: The folders above the splits, with a slash at the end.
        split: The split.
        classes: The names of the classes.
    """
    top = plain(f"{prefix}{split}")
    images = [name for folder, names in tree.names.items() if f"{folder}/".startswith(f"{top}/") for name in names]
    called = [path for path in tree.files(".txt", ".csv") if split.lower() in path.lower()]
    for path in called:
        try:
            labels = read_labels(tree.root, path, sorted(images))
        except SourceError:
            continue
        hits = sum(labels.get(os.path.splitext(name)[0]) in classes for name in images)
        if images and 10 * hits >= 9 * len(images):
            return path
    return None

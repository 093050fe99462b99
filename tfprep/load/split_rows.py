"""The samples that a pipeline reads: rows of splits, of one dataset or of several in a mix, and what these have in common."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tfprep.dataset import Dataset, FileInfo
from tfprep.errors import LoaderError
from tfprep.fields import FieldSpec
from tfprep.load.order.schedule import Numbers
from tfprep.load.order.variants import Variants
from tfprep.load.reader.table import RecordTable, TableSplit


@dataclass(frozen=True)
class SplitRows:
    """All samples of a split, or those with the numbers `rows`; `share` is their share of a mix.

    `training` says what they are for; None for what the split's name says.
    """

    dataset: Dataset
    split: str
    rows: Numbers | None = None
    share: float | None = None
    training: bool | None = None

    @property
    def samples(self) -> int:
        return self.dataset.split(self.split).samples

    @property
    def variants(self) -> int:
        """How many variants of each sample there are."""
        return self.dataset.split(self.split).variants

    def files(self, variants: Variants) -> list[FileInfo]:
        """The files with the variants that are read."""
        split = self.dataset.split(self.split)
        return [file for variant in variants.used(split.variants) for file in split.files[variant]]

    @property
    def label(self) -> str | None:
        """The field that the index's column `label` holds: the first label stored."""
        return next((name for name, spec in self.dataset.fields.items() if spec.kind == "label"), None)


def table_of(
    sources: Sequence[SplitRows], variants: Variants, fields: Sequence[str], *, with_label: bool
) -> RecordTable:
    """The table of the records of these splits, in the variants that are read."""
    splits = [TableSplit(source.dataset, source.split, variants.used(source.variants)) for source in sources]
    return RecordTable(splits, fields, label=with_label)


def table_rows(sources: Sequence[SplitRows], table: RecordTable) -> Numbers | None:
    """The rows of the table that the sources name; None where that is all of them."""
    if all(source.rows is None for source in sources):
        return None
    rows = [
        first + (np.arange(source.samples) if source.rows is None else source.rows)
        for first, source in zip(table.first_row, sources, strict=False)
    ]
    return np.concatenate(rows).astype(np.int64)


def common_specs(sources: Sequence[SplitRows]) -> Mapping[str, FieldSpec]:
    """The fields that all the datasets have, alike; LoaderError where there is none."""
    first, *rest = [source.dataset for source in sources]
    specs = dict(first.fields)
    for other in rest:
        for name, spec in list(specs.items()):
            if other.fields.get(name) != spec or other.codecs.get(name) != first.codecs[name]:
                del specs[name]
    if not specs:
        raise LoaderError("the datasets of a mix have no field in common: same name, kind, shape, dtype and codec")
    return specs


def check_class_names(sources: Sequence[SplitRows], fields: Iterable[str]) -> None:
    """LoaderError where one number means different classes in the datasets of a mix, in one of these fields."""
    for name in fields:
        names = [tuple(source.dataset.manifest.classes.get(name, ())) for source in sources]
        for source, other in zip(sources[1:], names[1:], strict=True):
            if other != names[0]:
                raise LoaderError(
                    f"the numbers of '{name}' mean other classes in {sources[0].dataset.path} "
                    f"({_listed(names[0])}) than in {source.dataset.path} ({_listed(other)}). Build both with the same class "
                    f"names in the same order, or leave '{name}' out of `fields`, `where`, `balance` and `weights`"
                )


def _listed(names: Sequence[str], most: int = 5) -> str:
    return (", ".join(names[:most]) + (", ..." if len(names) > most else "")) or "no names"


# --- what they are for ---------------------------------------------------------------------------------------------------

EVALUATION = frozenset({"val", "valid", "validation", "dev", "test", "testing", "eval", "evaluation", "holdout"})
"""The first words of the names of splits that a model is evaluated on."""


def is_training(sources: Sequence[SplitRows]) -> bool:
    """Whether a loader of these samples is for training, where nobody says it.

    A name that begins with "train" is for training, one whose first word is in `EVALUATION` is not: `train2017`, `trainval`,
    `val`, `test-dev`. Nothing is assumed of other names, because a wrong assumption would not be noticed: a training set
    would come in the same order each time, or a test set augmented.

    Args:
        sources: The samples that are read.

    Raises:
        LoaderError: A name says neither, or the names say both.
    """
    roles = {_role(source.split) if source.training is None else source.training for source in sources}
    if len(roles) == 1 and None not in roles:
        return roles == {True}
    named = ", ".join(repr(split) for split in dict.fromkeys(source.split for source in sources))
    reason = (
        "is for training and for evaluation"
        if None not in roles
        else f"{named} does not say by its name what it is for"
    )
    raise LoaderError(
        f"what is read {reason}: add training=True (each pass is an epoch in another order, with augmented variants) or "
        "training=False (each sample once, in the order on disk, as it is)"
    )


def _role(split: str) -> bool | None:
    if split.lower().startswith("train"):
        return True
    words = re.findall(r"[a-z]+", split.lower())
    return False if words and words[0] in EVALUATION else None

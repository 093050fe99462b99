"""Results of `tfprep check` in a recipe: samples to leave out, and samples that belong into one split."""

from __future__ import annotations

import csv
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from tfprep.errors import RecipeError, SourceError
from tfprep.fields import Kind
from tfprep.sources.source import Entry, FieldDecoder, Listing, Source, constructor_text


@dataclass(frozen=True, repr=False)
class Without:
    """Another source, without the samples that a file lists.

    Attributes:
        source: The other source.
        path: A CSV file with a column `key`, as `tfprep check --exclude` writes it. A relative path begins at the current folder;
            `Path(__file__).with_name("leaks.csv")` is a file beside the recipe.

    Raises:
        RecipeError: `source` is no source.
    """

    source: Source
    path: str | Path

    def __post_init__(self) -> None:
        if not hasattr(self.source, "scan"):
            raise RecipeError(f"Without: expected a source, such as sources.Folder(); got {self.source!r}")

    @property
    def kinds(self) -> Callable[[], Mapping[str, Kind]] | None:
        """The other source's method of this name, if it has one."""
        return getattr(self.source, "kinds", None)

    def decoders(self) -> dict[str, FieldDecoder]:
        """The other source's decoders."""
        decoders: dict[str, FieldDecoder] = getattr(self.source, "decoders", dict)()
        return decoders

    def rows(self) -> dict[str, tuple[str, ...]]:
        """The other source's fields with rows for each box."""
        rows: dict[str, tuple[str, ...]] = getattr(self.source, "rows", dict)()
        return rows

    def scan(self, root: Path) -> Listing:
        """List the samples below `root` that the file does not name; see `Source.scan`."""
        excluded = set(_column(Path(self.path), "Without", ("key",))["key"])
        listing, name = self.source.scan(root), Path(self.path).name
        own: dict[str, int] = {}

        def kept() -> Iterator[Entry]:
            missing = set(excluded)
            for entry in listing.entries:
                if entry.key in excluded:
                    missing.discard(entry.key)
                    own[f"listed in {name}"] = own.get(f"listed in {name}", 0) + 1
                else:
                    yield entry
            if missing:
                own[f"listed in {name}, but not in the data"] = len(missing)

        # The tally of the other source is complete only once its entries are consumed.
        return replace(listing, entries=kept(), tally=ChainMap(own, listing.tally))  # type: ignore[arg-type]

    __repr__ = constructor_text


@dataclass(frozen=True, repr=False)
class GroupFile:
    """A `group_by` for `Fractions` that keeps duplicates in one split: the groups that a file lists.

    Attributes:
        path: A CSV file with columns `key` and `group`, as `tfprep check --groups` writes it. A sample that it does not name is
            assigned as if there were no groups. Relative paths are as for `Without`.
    """

    path: str | Path

    def __call__(self, key: str) -> str | None:
        """Return the group of a sample; None if it has none. Raises SourceError if the file cannot be read."""
        return self._groups.get(key)

    @cached_property
    def _groups(self) -> dict[str, str]:
        columns = _column(Path(self.path), "GroupFile", ("key", "group"))
        return dict(zip(columns["key"], columns["group"], strict=True))

    __repr__ = constructor_text


def _column(path: Path, where: str, names: tuple[str, ...]) -> dict[str, list[str]]:
    """Read columns of a CSV file of UTF-8 with a row of names."""
    try:
        with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
            rows = list(csv.DictReader(file, strict=True))
    except (OSError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise SourceError(
            f"{where}: cannot read {path} ({reason}); `tfprep check` writes it. A relative path begins at the current folder"
        ) from error
    for number, row in enumerate(rows, 2):
        if any(not row.get(name) for name in names):
            raise SourceError(f"{where}: {path}, row {number}: expected a value for {' and '.join(names)}; got {row}")
    return {name: [row[name] for row in rows] for name in names}

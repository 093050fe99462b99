"""Compares the plan with what is in the folder: which shards are up to date, and whether the dataset is another one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tfprep.builder.layout import Layout
from tfprep.builder.plan import Plan, differing_listings
from tfprep.builder.receipts import (
    Receipt,
    changed_samples,
    is_of,
    read_contents,
    read_receipts,
    same_files,
    write_receipt,
)
from tfprep.dataset.plain_json import without_digest
from tfprep.errors import BuildError, DatasetError
from tfprep.recipe.describe import NO_SOURCE, only_code_changed, what_changed
from tfprep.seeding import sample_hashes
from tfprep.storage.urls import read_content
from tfprep.units import number

if TYPE_CHECKING:
    from tfprep.dataset.manifest import Manifest

NOT_BUILT = "not built yet"
DAMAGED = "its bytes are not those that were built"
UNREAD = "an input could not be read last time"
CRASHED = "a sample crashed or took too long last time"
ACCIDENTS = {"read": UNREAD, "process": CRASHED, "memory": "a sample did not fit into memory last time"}
"""Why a shard of unchanged files is built again, by `Reject.accident`."""
_COMPARED = 1 << 20
"""Samples of a split whose keys tell a dataset from another one."""
NAMED = 3
"""Number of differences that a message names."""


@dataclass(frozen=True)
class ShardState:
    """One shard of the plan compared with its receipt.

    Attributes:
      split, shard: Which shard.
      samples: Number of samples in the plan.
      why: Why the shard must be built; empty if it is up to date.
      changed, added, removed: Number of samples that differ from those of the receipt.
      expected: The form that each of these fields is to have, where records of the dataset differ.
      of_code: True if nothing but the user's code has changed.
      seconds: Processor time that the shard took when it was built.
    """

    split: str
    shard: int
    samples: int
    why: str
    changed: int = 0
    added: int = 0
    removed: int = 0
    expected: Mapping[str, str] = field(default_factory=dict)
    of_code: bool = False
    seconds: float = 0.0

    @property
    def up_to_date(self) -> bool:
        return not self.why


def shard_states(
    plan: Plan, layout: Layout, shards: Iterable[tuple[str, int]] | None = None, *, identities: bool = True,
    verify: bool = False,
) -> Iterator[ShardState]:  # fmt: skip
    """Compare shards of the plan with their receipts.

    Args:
      plan: The plan.
      layout: The folders of the build.
      shards: Which shards; None for all.
      identities: Compare raw files by more than size and time.
      verify: Read the bytes of all shards.
    """
    places = list(plan.starts if shards is None else shards)
    published: dict[str, str] | None = None
    if not layout.at_store and layout.manifest is not None:  # at a store names belong to contents
        published = {file.name: file.sha256 for file in layout.manifest.shard_files()}
    elif not layout.at_store and layout.current is not None:  # nothing says which shards these are
        verify = True
    for (split, shard), receipt in zip(places, read_receipts(layout, places), strict=True):
        if receipt is None:
            yield ShardState(split, shard, plan.size(split, shard), NOT_BUILT)
        elif not is_of(layout, receipt, published, verify=verify):
            yield ShardState(split, shard, plan.size(split, shard), DAMAGED)
        else:
            yield _state(plan, receipt, layout, identities)


def explain(states: Sequence[ShardState]) -> str:
    """Say what would be built, and why.

    Args:
        states: The states of all shards.

    Returns:
        One line, for example: "3 of 64 shards: 2 samples changed, 1 added".
    """
    due = [state for state in states if not state.up_to_date]
    if not due:
        return f"nothing to build: {number(len(states), 'shard')} up to date"
    whys = Counter(state.why for state in due if not (state.changed or state.added or state.removed))
    reasons = [f"{why} ({number(often, 'shard')})" if len(whys) > 1 else why for why, often in whys.most_common()]
    if differing := _differences(
        sum(state.changed for state in due), sum(state.added for state in due), sum(state.removed for state in due)
    ):
        reasons.append(differing)
    return f"{len(due)} of {number(len(states), 'shard')}: {'; '.join(reasons)}"


def _state(plan: Plan, receipt: Receipt, layout: Layout, identities: bool) -> ShardState:
    split, shard = receipt.split, receipt.shard
    state = ShardState(split, shard, plan.size(split, shard), "", seconds=sum(receipt.seconds.values()))
    if unseen := plan.described[split]["recipe"]["code"].get(NO_SOURCE):
        return replace(state, why=f"the source of {', '.join(unseen)} cannot be found: it may have changed")
    same = not identities or same_files(receipt, plan.identity(split, shard))
    if same and receipt.signature == plan.signature(split, shard):
        missing = {one[0] for one in (plan.task(split, shard).samples if receipt.rejected else ()) if "Error" in one[3]}
        rejected = [sample for sample in receipt.rejected if sample.stage != "read" or sample.key not in missing]
        accidents = {sample.accident for sample in rejected}
        return replace(state, why=next((why for name, why in ACCIDENTS.items() if name in accidents), ""))
    if receipt.fingerprint != plan.fingerprints[split]:
        return _recipe_change(plan, layout, receipt, state, same)
    if receipt.shards != plan.shards[split]:
        return replace(state, why=f"{receipt.shards} shards become {plan.shards[split]}")
    task, stats = plan.task(split, shard), read_contents(layout, receipt).stats
    keys = {key for key, *_ in task.samples}
    added, removed = len(keys - stats.keys()), len(stats.keys() - keys)
    changed = len(changed_samples(task, receipt, stats)) - added
    why = _differences(changed, added, removed) or "samples changed places"
    return replace(state, why=why, changed=changed, added=added, removed=removed)


def _recipe_change(plan: Plan, layout: Layout, receipt: Receipt, state: ShardState, same: bool) -> ShardState:
    """Return the state of a shard that another recipe built, with what differs between that recipe and the plan's; `same`: of
    files that no others took the place of."""
    split, shard = receipt.split, receipt.shard
    try:
        old = without_digest(read_content(layout.recipes / f"{receipt.fingerprint}.json"))
    except (OSError, ValueError):
        return replace(state, why="the recipe or the classes changed")
    new = plan.described[split]
    was, now = old["versions"], new["versions"]
    if versions := [f"{name} {was.get(name)} -> {now[name]}" for name in now if was.get(name) != now[name]]:
        return replace(state, why=f"built with other versions: {', '.join(versions)}")
    changes = what_changed(old["recipe"], new["recipe"]) + differing_listings(old, new)
    if not changes:
        return replace(state, why="another split is the first")
    more = f" and {len(changes) - NAMED} more" if len(changes) > NAMED else ""
    before = replace(plan, fingerprints={split: receipt.fingerprint}).signature(split, shard)
    of_code = same and before == receipt.signature and {**old, "recipe": None} == {**new, "recipe": None}
    why = f"the recipe changed: {', '.join(changes[:NAMED])}{more}"
    return replace(state, why=why, of_code=of_code and only_code_changed(old["recipe"], new["recipe"]))


def accept_code(plan: Plan, layout: Layout, states: Iterable[ShardState]) -> None:
    """Let the plan's code count as the code that built these shards, which differ in nothing else (`ShardState.of_code`)."""
    for receipt in read_receipts(layout, [(state.split, state.shard) for state in states]):
        if receipt is not None:
            fingerprint, signature = plan.fingerprints[receipt.split], plan.signature(receipt.split, receipt.shard)
            accepted = replace(receipt, fingerprint=fingerprint, signature=signature, code_accepted=True)
            write_receipt(layout, accepted, read_contents(layout, receipt))


def _differences(changed: int, added: int, removed: int) -> str:
    counts = [(count, verb) for count, verb in ((changed, "changed"), (added, "added"), (removed, "removed")) if count]
    return ", ".join(
        f"{number(count, 'sample')} {verb}" if n == 0 else f"{count} {verb}" for n, (count, verb) in enumerate(counts)
    )


# --- another dataset --------------------------------------------------------------------------------------------------


def check_replacement(plan: Plan, layout: Layout, limit: int | None) -> None:
    """Raise BuildError if `layout.out` holds a finished dataset that this build would replace by another one.

    Usually a build continues the dataset that is there: samples were added or changed, or the recipe was edited. It replaces the
    dataset by another one if the name differs, if no sample is the same, or if a limit would leave fewer samples.
    """
    if layout.current is None or (published := layout.manifest) is None:
        return
    samples, reason = sum(split.samples for split in published.splits.values()), ""
    if published.name != plan.recipe.name:
        reason = f"this recipe builds another one, {plan.recipe.name!r}"
    elif limit is not None and published.rejected + samples > len(plan):
        reason = f"the limit would leave {len(plan)} samples"
    elif samples and not _share_samples(plan, layout.current, published):
        reason = "none of its samples is among those to build (is --data the right folder?)"
    if reason:
        splits = ", ".join(published.splits)
        raise BuildError(
            f"{layout.out} holds the finished dataset {published.name!r} of {samples} samples ({splits}), and {reason}. "
            "Choose another folder with --out, or replace it with --replace (BuildOptions(replace=True))"
        )


def _share_samples(plan: Plan, folder: Path, published: Manifest) -> bool:
    """Return True if one of the first samples of a published split, which are a random part of it, is planned too."""
    from tfprep.dataset.index import read_index  # with Arrow, which the first build imports while workers are busy

    try:
        for split in published.splits:
            keys = read_index(folder, published, split, 0, ["key"], _COMPARED)["key"].to_pylist()
            hashes = sample_hashes(plan.recipe.seed, [key.encode("utf-8", "surrogateescape") for key in keys])
            # NumPy 2.0 fails on uint64 with its other algorithm.
            if any(np.isin(rows["hash"], hashes, kind="sort").any() for rows in plan.samples.numbers.blocks()):
                return True
    except DatasetError:
        return True  # The index is damaged: the build writes it again.
    return False

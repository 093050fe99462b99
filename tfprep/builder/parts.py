"""Parts: a build divided among machines that know nothing of each other, and the plan that all of them must share.

Shard number `n` (in the order split, shard) belongs to part `n mod parts`. Each part lists the raw files itself. The first one
stores what its plan rests on, and every other one compares its own with that and refuses if it differs: two machines with other
libraries, another copy of the recipe or other raw files would make a dataset that no single build makes.

`.tfprep/parts/plan.json` holds recipe, versions, shards and, by split, the number of samples and the sum of their digests.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tfprep.builder.layout import Layout, name_locked
from tfprep.builder.options import BuildOptions, Part
from tfprep.builder.plan import Plan, building_versions, differing_listings
from tfprep.builder.state import ACCIDENTS, NAMED, ShardState, explain
from tfprep.dataset.plain_json import from_json
from tfprep.errors import BuildError, ObjectChangedError
from tfprep.recipe.describe import what_changed
from tfprep.storage.local import writing
from tfprep.storage.store import open_store
from tfprep.storage.urls import durable_write, read_content, size_of


@dataclass(frozen=True)
class CommonPlan:
    """The common ground of all parts of a build.

    Attributes:
      stored: When, where and by which part it was stored, for messages.
      parts: The number of parts of the one that stored it.
      versions: Of everything that decides what bytes are made.
      described, fingerprints: As in `Plan`, by split.
      shards, samples: Their number, by split.
      listing: By split, the sum of the digests of all samples.
      options: The options that decide what is built.
    """

    stored: str
    parts: int
    versions: Mapping[str, str]
    described: Mapping[str, Any]
    fingerprints: Mapping[str, str]
    shards: Mapping[str, int]
    samples: Mapping[str, int]
    listing: Mapping[str, str]
    options: Mapping[str, Any]


def common_plan(plan: Plan, options: BuildOptions, part: Part | None = None) -> CommonPlan:
    """Return what the plan shares with those of other parts."""
    samples, sums = np.zeros(len(plan.splits), np.int64), np.zeros(len(plan.splits), np.uint64)
    for rows in plan.samples.numbers.blocks():
        samples += np.bincount(rows["split"], minlength=len(samples))
        np.add.at(sums, rows["split"], rows["digest"])  # modulo 2^64
    return CommonPlan(
        stored=f"{time.strftime('%Y-%m-%d %H:%M:%S')} on {socket.gethostname()} by part {part}",
        parts=part.parts if part else 0,
        versions=building_versions(),
        described=json.loads(json.dumps(plan.described)),
        fingerprints=dict(plan.fingerprints),
        shards=dict(plan.shards),
        samples=dict(zip(plan.splits, samples.tolist(), strict=True)),
        listing={name: f"{total:016x}" for name, total in zip(plan.splits, sums.tolist(), strict=True)},
        options={"--hash": options.hash, "--limit": options.limit},
    )


def agree(plan: Plan, layout: Layout, part: Part, options: BuildOptions) -> None:
    """Store what the plan rests on, if no part has done so; otherwise compare. Raises BuildError if anything differs."""
    stored = read_common_plan(layout)
    if stored is None:
        content = json.dumps(asdict(common_plan(plan, options, part)))
        if layout.at_store:
            with suppress(ObjectChangedError):  # another part was first
                open_store(layout.parts).replace(layout.part_plan.name, content.encode(), None)
                return
        else:
            with name_locked(layout, "plan"):
                if size_of(layout.part_plan) is None:
                    with writing(layout.parts):
                        layout.parts.mkdir(exist_ok=True)
                    durable_write(layout.part_plan, content)
                    return
        stored = read_common_plan(layout)
    if stored is not None:
        check_common_plan(plan, layout, stored, options)


def read_common_plan(layout: Layout) -> CommonPlan | None:
    """Return what the parts agreed on; None if no part has run."""
    try:
        return from_json(CommonPlan, json.loads(read_content(layout.part_plan)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        rule = "cannot be read, or was written by another version of tfprep"
        raise BuildError(f"{layout.part_plan} {rule} ({error}); {_RENEW}") from error


def check_common_plan(plan: Plan, layout: Layout, stored: CommonPlan, options: BuildOptions) -> None:
    """Raise BuildError if the plan differs from what the parts agreed on; the message says in what."""
    differences = list(_differences(stored, common_plan(plan, options)))
    if differences:
        more = f"; and {len(differences) - NAMED} more" if len(differences) > NAMED else ""
        raise BuildError(
            f"{layout.out}: this part would not build the same dataset as the others. {'; '.join(differences[:NAMED])}{more}. "
            f"The others follow the plan {layout.part_plan}, stored {stored.stored}. Make this machine like that one, or, if the "
            f"plan is out of date, {_RENEW}"
        )


_RENEW = "remove it while no part runs, then run all parts again"


def _differences(stored: CommonPlan, new: CommonPlan) -> Iterator[str]:
    stored_values, new_values = ({**common.versions, **common.options} for common in (stored, new))
    for name in {**stored_values, **new_values}:
        if stored_values.get(name) != new_values.get(name):
            yield f"{name} is {new_values.get(name)} here and {stored_values.get(name)} there"
    if stored.described.keys() != new.described.keys():
        yield f"the splits are {', '.join(new.described)} here and {', '.join(stored.described)} there"
        return
    recipes = {}  # each difference once, in order
    for split, old in stored.described.items():
        described = new.described[split]
        changes = what_changed(old["recipe"], described["recipe"]) + differing_listings(old, described)
        if changes:
            recipes[f"another recipe: {', '.join(changes[:NAMED])}"] = split
        elif stored.versions == new.versions and stored.fingerprints[split] != new.fingerprints[split]:
            recipes["another recipe"] = split
    yield from recipes
    for split, listing in stored.listing.items():
        # `tfprep build --explain` names the samples, once a part has built its shards.
        here, there = new.samples[split], stored.samples[split]
        if here != there:
            yield f"other raw files: {split} has {here} samples here and {there} there"
        elif listing != new.listing[split]:
            rule = "differ in key, size, time or values; copy raw files with their times: cp -p, rsync -a"
            yield f"other raw files: samples of {split} {rule}"
    if stored.shards != new.shards:
        yield f"the numbers of shards are {new.shards} here and {stored.shards} there"


# --- what is missing at the end ---------------------------------------------------------------------------------------


def check_complete(plan: Plan, states: Sequence[ShardState], layout: Layout, stored: CommonPlan | None) -> None:
    """Raise BuildError if a shard is not built as the plan says; the message names the shards and their parts."""
    missing = [state for state in states if not state.up_to_date and state.why not in ACCIDENTS.values()]
    if not missing:
        return
    names = ", ".join(f"{state.split} {state.shard}" for state in missing[: NAMED * 2])
    more = f" and {len(missing) - NAMED * 2} more" if len(missing) > NAMED * 2 else ""
    again = ""
    if stored is not None:
        places = {shard: place for place, shard in enumerate(plan.starts)}
        numbers = sorted({places[state.split, state.shard] % stored.parts for state in missing})
        again = f" Run again, of {stored.parts} parts: {','.join(map(str, numbers))}."
    raise BuildError(
        f"{layout.out}: nothing was published, shards are missing. {explain(states)} ({names}{more})."
        f"{again} `tfprep build` without --part builds what is missing and publishes"
    )

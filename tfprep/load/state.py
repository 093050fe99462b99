"""The state of a run: its next step, and what identifies the run, as a small JSON object.

A run that resumes from a state delivers the same samples in the same steps, with the same values. So the state holds, and
`start_step` compares, the dataset's files, the options that decide the order and the selection, and those that change values:
`geometry`, `at_load`, `dtype` and `normalize`, `inputs` and `targets`. It leaves out `fields`, because a dict of other fields
shows the same samples, and the options that change only how batches are made, such as hosts, threads and cache.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tfprep.errors import LoaderError
from tfprep.load.options import MOST_STEPS, op_text

if TYPE_CHECKING:
    from tfprep.load.plan import LoaderPlan
    from tfprep.load.selection import SplitRows

VERSION = 1
_WHY = {
    "fingerprint": "; the dataset was built anew, or its files differ",
    "added": "; these fields were computed anew meanwhile, by another model or from other samples",
    "selection": "; where, balance, weights, the fold or the mix differ",
}


def state_at(plan: LoaderPlan, step: int) -> dict[str, Any]:
    """The state before this step. It does not hold the number of hosts, which may change."""
    if isinstance(step, bool) or not isinstance(step, int | np.integer) or step < 0:
        raise LoaderError(f"a step is a whole number from 0, not {step!r}")
    return {"version": VERSION, "step": int(step), **identity(plan)}


def identity(plan: LoaderPlan) -> dict[str, Any]:
    """Return what decides which samples a step holds, and their values; in the types that JSON returns."""
    options, schedule = plan.options, plan.schedule
    added = {group: _digest([_files(part) for part in table.parts]) for group, table in plan.tables.items() if group}
    sampler, weights = schedule.sampler, getattr(schedule.sampler, "weights", None)
    selection = [
        type(sampler).__name__,
        sampler.size,
        *(str(getattr(sampler, name, "")) for name in ("sizes", "quotas")),
    ]
    arrays = [array.tobytes() for array in (schedule.rows, weights) if array is not None]
    return {
        "dataset": [source.name for source in plan.sources],
        "fingerprint": fingerprint(plan.sources),
        "seed": options.seed,
        "batch_size": options.batch_size,
        "order": [
            schedule.order.name,
            *([schedule.order.block, schedule.order.window] if schedule.order.name == "block" else []),
            *([[list(size) for size in options.bucket.sizes]] if options.bucket else []),
        ],
        "variants": plan.variants.choice,
        "remainder": schedule.remainder,
        "training": options.training,
        "selection": _digest([*selection, *(hashlib.sha256(data).hexdigest() for data in arrays)]),
        "geometry": [*plan.geometry_texts],
        "at_load": _ops_text(options.at_load, options.views),
        "values": [options.dtype, "normalized" if options.normalize else "as stored"],
        "inputs": _plain(options.inputs),
        "targets": _plain(options.targets),
        "sample_weight": options.sample_weight,
        **({"added": added} if added else {}),
    }


def fingerprint(sources: Sequence[SplitRows]) -> str:
    """A digest of what the shards hold."""
    return _digest([_files(source) for source in sources])


def start_step(plan: LoaderPlan, state: Mapping[str, Any]) -> int:
    """The state's next step; LoaderError where the state belongs to another run."""
    step = state.get("step") if isinstance(state, Mapping) else None
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise LoaderError(f"a loader's state is the JSON object that state_at returned, not {str(state)[:80]!r}")
    if step > MOST_STEPS:
        raise LoaderError(f"a loader's state of step {step:,}; steps end at {MOST_STEPS:,}")
    if state.get("version") != VERSION:
        raise LoaderError(f"a loader's state of version {state.get('version')!r}; this tfprep reads {VERSION}")
    for name, value in identity(plan).items():
        then = state.get(name, {} if name == "added" else None)
        if name == "added" and isinstance(then, Mapping):  # a run of other fields has the same samples
            then = {group: then.get(group, digest) for group, digest in value.items()}
        if then != value:
            raise LoaderError(
                f"this state belongs to another run: its {name} is {then!r}, here it is {value!r}. Make the loader "
                f"as it was then, or start without the state{_WHY.get(name, '')}"
            )
    return step


def _ops_text(ops: Any, views: Mapping[str, int] | None) -> list[Any]:
    if views is not None:
        return [[name, count, _ops_text(ops[name], None)] for name, count in views.items()]
    return [op_text(op) for op in ops]


def _plain(choice: Any) -> Any:
    """`inputs` or `targets` as lists and dicts."""
    if choice is None or isinstance(choice, str):
        return choice
    if isinstance(choice, Mapping):
        return {name: _plain(part) for name, part in choice.items()}
    names = list(choice)
    return names[0] if len(names) == 1 else names


def _files(source: Any) -> list[Any]:
    """Name, records and content of each shard; imported ones have the checksum of their rows in `locations.bin` for it."""
    info = source.dataset.split(source.split)
    return [
        [file.name, file.records, file.sha256 or crc]
        for files, crcs in zip(info.files, info.rows_crc32c, strict=True)
        for file, crc in zip(files, crcs, strict=True)
    ]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]

"""The state of a run: its next step, and what identifies the run, as a small JSON object.

A run that resumes from a state delivers the same samples in the same steps, with the same values. So the state holds, and
`start_step` compares, the content of the dataset's shards, the rules of its manifest, and all options of the loader but those
that are declared not to decide what is delivered. A run that met a bad record may continue with on_bad="skip".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from tfprep.errors import LoaderError
from tfprep.load.options import DEFAULTS, MOST_STEPS, deciding, op_texts
from tfprep.load.order.schedule import MOST_EPOCHS

if TYPE_CHECKING:
    from tfprep.load.plan import LoaderPlan
    from tfprep.load.selection import SplitRows

OPS = 1
"""Raised with each change of what an op, a derived input or a decoder makes of the same input."""
_WHY = {
    "fingerprint": "; the dataset was built again, or its files differ",
    "added": "; these fields were computed again meanwhile, by another model or from other samples",
    "selection": "; the fold, the mix, or what where and balance find differ",
    "rules": "; fill, border, min_visible, flip_indices or class names of the dataset differ, or this "
    "version of tfprep computes an op in another way",
}


def state_at(plan: LoaderPlan, step: int) -> dict[str, Any]:
    """The state before this step."""
    if isinstance(step, bool) or not isinstance(step, int | np.integer) or step < 0:
        raise LoaderError(f"a step is a whole number from 0, not {step!r}")
    return {"step": int(step), "identity": identity(plan)}


def identity(plan: LoaderPlan) -> dict[str, Any]:
    """What decides which samples a step holds, and their values, in the types that JSON returns."""
    schedule, manifest = plan.schedule, plan.sources[0].dataset.manifest
    chosen: dict[str, Any] = {name: getattr(plan.options, name) for name in deciding("element", "order")}
    chosen |= {"training": plan.training, "order": schedule.order.name}
    chosen |= {"variants": plan.variants.choice, "remainder": schedule.remainder}
    options = {name: _plain(value) for name, value in {**chosen, **plan.op_texts}.items()}
    for name in ("inputs", "targets"):  # a list of one name means the name
        options[name] = _single_names(options[name])
    # An option that has its default is left out, so that a later version may have more of them.
    options = {name: value for name, value in options.items() if value != DEFAULTS[name]}
    sampler = schedule.sampler
    selection = [
        type(sampler).__name__,
        sampler.size,
        *(str(getattr(sampler, name, "")) for name in ("sizes", "quotas")),
    ]
    arrays = [array.tobytes() for array in (schedule.rows, getattr(sampler, "weights", None)) if array is not None]
    rules = [
        OPS,
        plan.augmentation.rules if plan.augmentation else {},
        {name: list(manifest.classes.get(name, ())) for name in (plan.mixing.labels if plan.mixing else ())},
    ]
    added = {group: _digest([_files(part) for part in table.parts]) for group, table in plan.tables.items() if group}
    return {
        "dataset": [source.name for source in plan.sources],
        "fingerprint": fingerprint(plan.sources),
        **options,
        "added": added,
        "selection": _digest([*selection, *(hashlib.sha256(data).hexdigest() for data in arrays)]),
        "rules": _digest(repr(rules)),
    }


def fingerprint(sources: Sequence[SplitRows]) -> str:
    """A digest of what the shards hold."""
    return _digest([_files(source) for source in sources])


def start_step(plan: LoaderPlan, state: Mapping[str, Any]) -> int:
    """The state's next step; LoaderError where the state belongs to another run."""
    step = state.get("step") if isinstance(state, Mapping) else None
    then = state.get("identity") if isinstance(state, Mapping) else None
    if isinstance(step, bool) or not isinstance(step, int) or step < 0 or not isinstance(then, Mapping):
        raise LoaderError(f"a loader's state is the JSON object that state_dict returned, not {str(state)[:80]!r}")
    if step > MOST_STEPS:
        raise LoaderError(f"a loader's state of step {step:,}; steps end at {MOST_STEPS:,}")
    now, digests = identity(plan), ("added", "selection", "rules")
    for name in (
        *(name for name in {**then, **now} if name not in digests),
        *digests,
    ):  # what an option says comes first
        if name not in then or name not in now or then[name] != now[name]:
            raise LoaderError(
                f"this state belongs to another run: its {name} is {then.get(name, DEFAULTS.get(name))!r}, here it is "
                f"{now.get(name, DEFAULTS.get(name))!r}. Make the "
                f"loader as it was then, or start without the state{_WHY.get(name, '')}"
            )
    return step


def first_step(plan: LoaderPlan) -> int:
    """The step with which a run begins, by the option `start_step`. LoaderError for a state of another run, or too large a
    number."""
    option = plan.options.start_step
    if isinstance(option, Mapping):
        return start_step(plan, option)
    if option // plan.schedule.steps_per_epoch >= MOST_EPOCHS:
        raise LoaderError(f"start_step={option:,} is after the last of {MOST_EPOCHS:,} epochs, the most of a run")
    return option


def _plain(value: Any) -> Any:
    """The value of an option in the types that JSON returns: ops by their options, arrays by their content."""
    if value is None or isinstance(value, bool | int | float | str | np.generic):
        return value.item() if isinstance(value, np.generic) else value
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        return [array.dtype.str, list(array.shape), hashlib.sha256(array.tobytes()).hexdigest()[:16]]
    if isinstance(value, Iterable):
        return [_plain(part) for part in value]
    return str(value) if isinstance(value, pc.Expression) else op_texts(value)


def _single_names(choice: Any) -> Any:
    if isinstance(choice, Mapping):
        return {name: _single_names(part) for name, part in choice.items()}
    return choice[0] if isinstance(choice, list) and len(choice) == 1 else choice


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

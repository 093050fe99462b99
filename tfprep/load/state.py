"""The state of a run: its next step, and what identifies the run, as a small JSON object.

A run that resumes from a state delivers the same samples in the same steps, with the same values. So the state holds, and
`start_step` compares, the content of the dataset's shards, the rules of its manifest, and all options of the loader but those
that are declared not to decide what is delivered. A run that met a bad record may continue with on_bad="skip".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from tfprep.errors import LoaderError
from tfprep.load.options import DEFAULTS, MOST_STEPS, deciding, described
from tfprep.load.order.schedule import MOST_EPOCHS

if TYPE_CHECKING:
    from tfprep.load.plan import LoaderPlan

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
    chosen |= {"training": plan.training, "order": schedule.order}
    chosen |= {"variants": plan.variants, "remainder": schedule.remainder}
    options = {name: described(value) for name, value in {**chosen, **plan.ops}.items()}
    for name in ("inputs", "targets"):  # a list of one name means the name
        options[name] = _single_names(options[name])
    sampler = schedule.sampler
    selection = [type(sampler).__name__, {option.name: getattr(sampler, option.name) for option in fields(sampler)}]
    rules = [
        OPS,
        plan.augmentation.rules if plan.augmentation else {},
        {name: list(manifest.classes.get(name, ())) for name in (plan.mixing.labels if plan.mixing else ())},
    ]
    return {
        "dataset": [source.name for source in plan.sources],
        "fingerprint": fingerprint(plan.sources),
        # An option that has its default is left out, so that a later version may have more of them.
        **{name: value for name, value in options.items() if value != DEFAULTS[name]},
        "added": {group: fingerprint(table.parts) for group, table in plan.tables.items() if group},
        "selection": _digest(described([*selection, schedule.rows])),
        "rules": _digest(repr(rules)),
    }


def fingerprint(parts: Iterable[Any]) -> str:
    """A digest of what the shards hold: name, records and content of each.

    Imported ones have the checksum of their rows in `locations.bin` for their content.
    """
    infos = [part.dataset.split(part.split) for part in parts]
    return _digest(
        [
            [
                [file.name, file.records, file.sha256 or crc]
                for files, crcs in zip(info.files, info.rows_crc32c, strict=True)
                for file, crc in zip(files, crcs, strict=True)
            ]
            for info in infos
        ]
    )


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


def _single_names(choice: Any) -> Any:
    if isinstance(choice, Mapping):
        return {name: _single_names(part) for name, part in choice.items()}
    return choice[0] if isinstance(choice, list) and len(choice) == 1 else choice


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]

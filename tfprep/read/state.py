"""Where a run stands, as a small JSON object that also says which run it is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tfprep.errors import LoaderError

if TYPE_CHECKING:
    from tfprep.read.pipeline import Pipeline

VERSION = 1


def state_at(pipeline: Pipeline, step: int) -> dict[str, Any]:
    """The state from which step `step` comes next. The number of hosts is no part of it: it may change."""
    if isinstance(step, bool) or not isinstance(step, int | np.integer) or step < 0:
        raise LoaderError(f"a step is a whole number from 0, not {step!r}")
    return {"version": VERSION, "step": int(step), **identity(pipeline)}


def identity(pipeline: Pipeline) -> dict[str, Any]:
    """What decides which samples a step holds."""
    options, schedule = pipeline.options, pipeline.schedule
    return {
        "dataset": [f"{source.dataset.name}/{source.split}" for source in pipeline.sources],
        "fingerprint": _digest([_files(source) for source in pipeline.sources]),
        "seed": options.seed,
        "batch_size": options.batch_size,
        "order": [schedule.order.name, schedule.order.block, schedule.order.window]
        if schedule.order.name == "block"
        else [schedule.order.name],
        "variants": pipeline.variants.choice,
        "remainder": schedule.remainder,
        "training": options.training,
        "selection": _selection(pipeline),
    }


def start_step(pipeline: Pipeline, state: Mapping[str, Any]) -> int:
    """The step that the state says comes next; LoaderError where it belongs to another run."""
    if state.get("version") != VERSION:
        raise LoaderError(f"a loader's state of version {state.get('version')!r}; this tfprep reads {VERSION}")
    mine = identity(pipeline)
    for name, value in mine.items():
        if state.get(name) != value:
            raise LoaderError(
                f"this state belongs to another run: its {name} is {state.get(name)!r}, here it is {value!r}. Make the loader "
                "as it was then, or begin anew without the state"
            )
    return int(state["step"])


def _files(source: Any) -> list[Any]:
    return [
        [file.name, file.records, file.sha256] for files in source.dataset.split(source.split).files for file in files
    ]


def _selection(pipeline: Pipeline) -> str:
    """A digest of which samples are drawn from, and how often."""
    draw, rows = pipeline.schedule.draw, pipeline.schedule.rows
    held = [type(draw).__name__, draw.size, *(str(getattr(draw, name, "")) for name in ("sizes", "quotas"))]
    weights = getattr(draw, "weights", None)
    arrays = [array.tobytes() for array in (rows, weights) if array is not None]
    return _digest([*held, *(hashlib.sha256(data).hexdigest() for data in arrays)])


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]

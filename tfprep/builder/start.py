"""`build`, the public function: it starts the worker processes first, so that they import while this process plans."""

from __future__ import annotations

import os
import time
from contextlib import closing
from typing import TYPE_CHECKING

from tfprep.builder.options import BuildOptions, BuildSummary, worker_count
from tfprep.builder.workers import Engine, Inline, Processes
from tfprep.dataset.names import INDEX

if TYPE_CHECKING:
    from tfprep.builder.progress import OnEvent, OnProgress
    from tfprep.recipe import Recipe

ENTRY = "tfprep.builder.shard:open_work"


def build(
    recipe: Recipe | str | os.PathLike[str],
    out: str | os.PathLike[str],
    data: str | os.PathLike[str] = ".",
    *,
    options: BuildOptions | None = None,
    on_progress: OnProgress | None = None,
    on_event: OnEvent | None = None,
) -> BuildSummary:
    """Build the dataset that a recipe describes.

    Shards that an earlier build left in `out`, finished or killed, are kept where they are up to date.

    Args:
      recipe: The recipe, or the path of the Python file that defines `RECIPE`.
      out: The folder of the dataset. It is created if it is missing.
      data: The folder of the raw files, which the recipe's source lists.
      options: How the build runs: number of workers, limit, what to do with bad samples.
      on_progress: Called with a `BuildProgress` several times a second.
      on_event: Called with a `BuildEvent` for each step of the build and each problem.

    Returns:
      What was built and what the dataset holds now.

    Raises:
      RecipeError: The recipe is wrong, or does not fit the raw data.
      SourceError: The raw data is not laid out as the source expects.
      BuildError: The build cannot go on: for example the disk is full, or another build writes into `out`.

    Example:
      >>> summary = tfprep.build("pipelines/camvid.py", out="out/camvid", data="data/camvid")
      >>> print(summary.samples, "samples,", summary.rejects, "rejected")
    """
    started = time.monotonic()
    options = options or BuildOptions()
    with closing(_engine(options)) as engine:
        # A dataset that is complete may need no worker at all.
        if not os.path.exists(os.path.join(out, INDEX)):
            engine.start()
        # NumPy, OpenCV and Arrow are imported here, while the workers do the same.
        from tfprep.builder.run import run_build

        return run_build(recipe, out, data, options, engine, on_progress, on_event, started)


def _engine(options: BuildOptions) -> Engine:
    workers = worker_count(options)
    return Processes(ENTRY, workers=workers, item_timeout_s=options.item_timeout_s) if workers else Inline(ENTRY)

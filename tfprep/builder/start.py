"""`build` and its parts, the public functions: they start the worker processes first, which import while this process plans."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tfprep.builder.options import BuildOptions, BuildSummary, Part, PartSummary, logged_events, worker_count
from tfprep.dataset.names import POINTER
from tfprep.errors import BuildError
from tfprep.pool import LATER, Pool
from tfprep.storage.urls import folder_at, scheme_of

if TYPE_CHECKING:
    from tfprep.builder.cluster import Ray
    from tfprep.builder.options import OnEvent, OnProgress
    from tfprep.builder.run import Build
    from tfprep.recipe import Recipe

ENTRY = "tfprep.builder.shard:open_work"


def build(
    recipe: Recipe | str | os.PathLike[str],
    out: str | os.PathLike[str],
    data: str | os.PathLike[str] | None = None,
    *,
    options: BuildOptions | None = None,
    engine: Ray | None = None,
    on_progress: OnProgress | None = None,
    on_event: OnEvent | None = None,
    confirm: Callable[[str], bool] | None = None,
) -> BuildSummary:
    """Build the dataset that a recipe describes.

    Shards that an earlier build left in `out`, finished or killed, are kept where they are up to date.

    Args:
      recipe: The recipe, or the path of the Python file that defines `RECIPE`.
      out: The folder of the dataset. It is created if it is missing.
      data: The folder of the raw files, which the recipe's source lists; for `Records` also a URL. None for the one that the
        recipe's file names as `DATA`, and else the current folder.
      options: How the build runs: number of workers, limit, what to do with bad samples.
      engine: The cluster that builds the shards; None builds on this machine. The dataset is the same.
      on_progress: Called with a `BuildProgress` several times a second.
      on_event: Called with a `BuildEvent` for each step of the build and each problem.
      confirm: Called with a text before shards are built again for which nothing but the code of your functions has changed;
        False ends the build. None builds them.

    Returns:
      What was built and what the dataset holds now.

    Raises:
      RecipeError: The recipe is wrong, or does not fit the raw data.
      SourceError: The raw data is not laid out as the source expects.
      BuildError: The build cannot go on: for example the disk is full, or another build writes into `out`.
      MissingDependencyError: The engine needs Ray, which is not installed.

    Example:
      >>> summary = tfprep.build("pipelines/camvid.py", "out/camvid", "data/camvid")
      >>> print(summary.samples, "samples,", summary.rejected, "rejected")
    """
    if engine is not None:
        return _build_on_cluster(recipe, out, data, options or BuildOptions(), engine, on_progress, on_event, confirm)
    with _job(recipe, out, data, options, on_progress, on_event) as job:
        job.confirm = confirm
        return job.build()


def build_part(
    recipe: Recipe | str | os.PathLike[str],
    out: str | os.PathLike[str],
    data: str | os.PathLike[str] | None = None,
    *,
    part: int,
    parts: int,
    options: BuildOptions | None = None,
    on_progress: OnProgress | None = None,
    on_event: OnEvent | None = None,
) -> PartSummary:
    """Build one part of a dataset's shards, and publish nothing.

    Parts may run at the same time on any machines that see `out` and the raw files; each of them may be killed, and may run
    again. `finish_build` then publishes the bytes that one `build` makes.

    Args:
      recipe, out, data, options, on_progress, on_event: As in `build`. `max_bad` is checked by `finish_build`.
      part: Which part, from 0.
      parts: The number of parts.

    Returns:
      What this part holds.

    Raises:
      BuildError: This machine would not build the same dataset as the parts before: another recipe, other versions or other
        raw files. The message says what differs. Also all errors of `build`.

    Example:
      >>> summary = build_part("photos.py", "out/photos", "data/photos", part=3, parts=16)
    """
    chosen = Part(part, parts)
    with _job(recipe, out, data, options, on_progress, on_event, part=chosen) as job:
        return job.build_part(chosen)


def finish_build(
    recipe: Recipe | str | os.PathLike[str],
    out: str | os.PathLike[str],
    data: str | os.PathLike[str] | None = None,
    *,
    options: BuildOptions | None = None,
    on_progress: OnProgress | None = None,
    on_event: OnEvent | None = None,
) -> BuildSummary:
    """Publish the dataset that parts have built.

    Shards are built here only where a field has another form than in most records, which no part can know.

    Args:
      recipe, out, data, options, on_progress, on_event: As in `build`.

    Returns:
      What the dataset holds now.

    Raises:
      BuildError: Shards are missing; the message names them and their parts. Or the recipe, the versions or the raw files are
        no longer those that the parts agreed on. Also all errors of `build`.
    """
    with _job(recipe, out, data, options, on_progress, on_event, workers=False) as job:
        return job.finish()


def _build_on_cluster(
    recipe: Recipe | str | os.PathLike[str], out: str | os.PathLike[str], data: str | os.PathLike[str] | None,
    options: BuildOptions, cluster: Ray, on_progress: OnProgress | None, on_event: OnEvent | None,
    confirm: Callable[[str], bool] | None,
) -> BuildSummary:  # fmt: skip
    """Build parts on a cluster, as one of those that share the lock of the dataset, then publish them."""
    from tfprep.builder.cluster import PARTS_PER_CPU, Ray, build_parts, connected, node_paths

    if not isinstance(cluster, Ray):
        raise BuildError(f"engine is None or tfprep.builder.Ray(...), not {cluster!r}")
    if options.workers == 0:
        raise BuildError("workers=0 builds in this process; a cluster needs at least 1 worker")
    with (
        _job(recipe, out, data, options, on_progress, on_event, workers=False, shared=True) as job,
        connected(cluster) as cpus,
    ):
        job.confirm = confirm
        places = node_paths(Path(recipe)) if isinstance(recipe, str | os.PathLike) else recipe
        where = str(job.layout.out.absolute()), str(job.root.absolute())
        call, most = (build_part, places, *where, replace(options, workers=1)), PARTS_PER_CPU * max(1, cpus)
        samples, shards = job.build_elsewhere(
            most, lambda parts: build_parts(call, parts, options.workers or most, job.log_event)
        )
    summary = finish_build(recipe, out, data, options=options, on_progress=on_progress, on_event=on_event)
    return replace(
        summary,
        built_samples=summary.built_samples + samples,
        built_shards=summary.built_shards + shards,
        seconds=time.monotonic() - job.started,
    )


@contextmanager
def _job(
    recipe: Recipe | str | os.PathLike[str], out: str | os.PathLike[str], data: str | os.PathLike[str] | None,
    options: BuildOptions | None, on_progress: OnProgress | None, on_event: OnEvent | None, *, workers: bool = True,
    part: Part | None = None, shared: bool = False,
) -> Iterator[Build]:  # fmt: skip
    """Start the workers at once if they are needed, load the recipe, lock the dataset and open the log.

    A part shares the lock with others, and so does what starts parts on other machines (`shared`).
    """
    started = time.monotonic()
    options = options or BuildOptions()
    with ExitStack() as stack:
        # The environment of this process is taken before the recipe is loaded: each worker loads it itself.
        pool = Pool(ENTRY, LATER, worker_count(options), item_timeout_s=options.item_timeout_s)
        engine = stack.enter_context(closing(pool))
        path = Path(recipe) if isinstance(recipe, str | os.PathLike) else None
        is_there = path is None or (path.suffix == ".py" and path.is_file())  # if not, loading it says why
        # The build of a dataset that is there, or may be, may need no worker at all.
        is_new = "://" not in os.fspath(out) and not os.path.exists(os.path.join(out, POINTER))
        if workers and is_there and is_new:
            engine.start()
        # NumPy, OpenCV and Arrow are imported here, the first two by the recipe, while the workers do the same.
        from tfprep.builder.layout import placed
        from tfprep.builder.run import Build, check_folders, loaded_recipe
        from tfprep.dataset.versions import NewVersion, locked
        from tfprep.recipe.file import data_root

        raw = data_root(path, data)
        for place in (raw, folder_at(out)):
            if scheme_of(place) == "memory" and worker_count(options):
                raise BuildError(
                    f"{place} is in the memory of this process, where worker processes see nothing of it; build with "
                    "BuildOptions(workers=0), or use a folder or an object store"
                )
        loaded, file = loaded_recipe(recipe)
        layout = stack.enter_context(placed(os.path.expanduser(out)))
        check_folders(raw, layout.out)
        layout.make()
        new: NewVersion | None = None
        if part is None and not shared:
            new = stack.enter_context(NewVersion(layout.out, layout.scratch))
        else:
            stack.enter_context(locked(layout.out, shared=True))
        log = layout.log
        if part is not None:
            log = layout.here / layout.parts.name / f"part-{part.number}-of-{part.parts}.log"
        log_event = stack.enter_context(logged_events(log, on_event))
        yield Build(loaded, file, layout, raw, options, engine, on_progress, log_event, new, started)

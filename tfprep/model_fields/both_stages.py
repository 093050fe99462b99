"""`tfprep.build`: the build of a recipe, and then the fields that models compute for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from tfprep.builder import build as build_shards

if TYPE_CHECKING:
    from tfprep.builder import BuildOptions, BuildSummary, OnEvent, OnProgress
    from tfprep.engines import Ray
    from tfprep.model_fields.add import FieldsSummary
    from tfprep.recipe import Recipe


def build(
    recipe: Recipe | str | os.PathLike[str],
    out: str | os.PathLike[str],
    data: str | os.PathLike[str] | None = None,
    *,
    options: BuildOptions | None = None,
    engine: Ray | None = None,
    on_progress: OnProgress | None = None,
    on_event: OnEvent | None = None,
) -> BuildSummary:
    """Build the dataset that a recipe describes (see `tfprep.builder.build`), then compute its `model_fields` in this process.

    Args:
      recipe, out, data, options, engine, on_progress, on_event: As in `tfprep.builder.build`.

    Returns:
      What was built, and what the dataset holds now.

    Raises:
      BuildError: A model failed; the dataset is published without its fields. Also all errors of `tfprep.builder.build`.
    """
    summary = build_shards(
        recipe, out, data, options=options, engine=engine, on_progress=on_progress, on_event=on_event
    )
    compute_fields(recipe, summary)
    return summary


def compute_fields(
    recipe: Recipe | str | os.PathLike[str],
    summary: BuildSummary,
    on_progress: Callable[[int, int], None] | None = None,
) -> FieldsSummary | None:
    """Compute the `model_fields` of a recipe for the dataset that it built, as `add_fields` does; None where it has none."""
    from pathlib import Path

    from tfprep.recipe import Recipe
    from tfprep.recipe.file import load_recipe

    fields = (recipe if isinstance(recipe, Recipe) else load_recipe(Path(recipe))).model_fields
    if not fields:
        return None
    from tfprep.model_fields.add import add_fields

    return add_fields(summary.out, fields, replace=True, on_progress=on_progress)

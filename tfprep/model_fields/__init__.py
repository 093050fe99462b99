"""Fields that models compute from the fields of a built or indexed dataset: `add_fields` and `remove_fields`.

They are in a dataset of their own, in a folder inside that of the main one. It has the same splits, shards and order of records,
so that a record of it belongs to the main record of the same place. The main shards stay as they are; the manifest names the
folder with its digest, and readers deliver both as one.

Names are imported when they are first used: a build without such fields needs no loader.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tfprep.optional import lazy_names

if TYPE_CHECKING:
    from tfprep.builder import BuildOptions, BuildSummary, OnEvent, OnProgress, Ray
    from tfprep.model_fields.add import FieldsSummary, add_fields, explain_fields, remove_fields
    from tfprep.recipe import Recipe

__all__ = ["FieldsSummary", "add_fields", "build", "compute_fields", "explain_fields", "remove_fields"]

__getattr__, _ = lazy_names(__name__, {"add": ["FieldsSummary", "add_fields", "explain_fields", "remove_fields"]})


def __dir__() -> list[str]:
    return __all__


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
    from tfprep.builder import build as build_shards

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
    from tfprep.recipe import Recipe
    from tfprep.recipe.file import load_recipe

    fields = (recipe if isinstance(recipe, Recipe) else load_recipe(Path(recipe))).model_fields
    if not fields:
        return None
    from tfprep.model_fields.add import add_fields

    return add_fields(summary.out, fields, replace=True, on_progress=on_progress)

"""Recipes: what a dataset holds, and how each of its values is computed.

Names are imported when they are first used: a loader's worker processes import `tfprep.recipe.sample` only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfprep.optional import lazy_names

if TYPE_CHECKING:
    from tfprep.recipe.model_fields import ModelFields
    from tfprep.recipe.recipe import Recipe

__all__ = ["ModelFields", "Recipe"]

__getattr__, __dir__ = lazy_names(__name__, {"model_fields": ["ModelFields"], "recipe": ["Recipe"]})

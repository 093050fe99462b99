"""Recipes: what a dataset holds, and how each of its values is computed."""

from tfprep.recipe.model_fields import ModelFields
from tfprep.recipe.recipe import Recipe

__all__ = ["ModelFields", "Recipe"]

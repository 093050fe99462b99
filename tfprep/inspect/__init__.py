"""What is in a dataset: leaks between its splits, differences from another one, statistics and suspicious samples.

All of it reads the index first, and records only for what the index does not hold. Nothing is written into the dataset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfprep.optional import lazy_names

if TYPE_CHECKING:
    from tfprep.inspect.leaks import Leaks, Pair, find_leaks

__all__ = ["Leaks", "Pair", "find_leaks"]

__getattr__, __dir__ = lazy_names(__name__, {"leaks": ["Leaks", "Pair", "find_leaks"]})

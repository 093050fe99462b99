"""Keras's advice to `.shuffle` a `tf.data.Dataset`, silenced for loaders alone.

Without shuffle=False, `fit` warns of every dataset that it "is expected to already be shuffled (via `.shuffle(buffer_size)`)". It
looks at nothing of the dataset, so there is no hook to say that a loader is in random order already, where a shuffle buffer would
only cost memory. A filter of Python's warnings sees the text alone. The filter here therefore holds an object with the `match` of
a compiled pattern, which finds the dataset in the frame of Keras that warns (`x`; tried with Keras 3.15, while 3.5 has no such
advice). Where it finds none, the advice is shown.
"""

from __future__ import annotations

import re
import sys
import warnings
from typing import Any

from tfprep.load.tensorflow.private import DatasetOver, datasets_of

TEXT = "`shuffle=True` was passed, but will be ignored since the data `x` was provided as a tf.data.Dataset"
_DEPTH = 4
"""Frames above `match` to look at: those of `warnings` where it runs in Python, and that of Keras."""


class _OfALoader:
    """Matches the advice where it is about a loader, or a dataset made of one such as `train.map(...)`."""

    def match(self, text: str) -> bool:
        return text.startswith(TEXT) and any(
            isinstance(dataset, DatasetOver) for dataset in datasets_of(_dataset_of_the_warning())
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """A plain pattern: scikit-learn sends all filters to its workers, which should not import TensorFlow for this."""
        return re.compile, (re.escape(TEXT),)


_FILTER = ("ignore", _OfALoader(), UserWarning, None, 0)


def silence_advice_to_shuffle() -> None:
    """Put the filter in front of the others, as `warnings.filterwarnings` does with one that it has."""
    filters: list[Any] = warnings.filters  # type: ignore[assignment] # typed as a Sequence
    if _FILTER in filters:
        filters.remove(_FILTER)
    filters.insert(0, _FILTER)


def _dataset_of_the_warning() -> Any:
    frame = sys._getframe(1)
    for _ in range(_DEPTH):
        if frame.f_back is None:
            return None
        frame = frame.f_back
        if frame.f_globals.get("__name__", "").startswith("keras.") and "x" in frame.f_locals:
            return frame.f_locals["x"]
    return None

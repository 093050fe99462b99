"""Batches for `fit`, `evaluate` and `predict` of Keras 3 on each of its backends, without TensorFlow on JAX and PyTorch.

Keras reads its input through adapters, and takes a `DataAdapter` of another package as it is. It has no public name for that
class (`keras.src.trainers.data_adapters`; from Keras 3.8 on, tried on 3.15). The public way, `keras.utils.PyDataset`, is asked
for batches by number, in an order that `fit` shuffles, and is not told where a pass begins: the loader's order, its resume and
the batch with which Keras builds a model would be lost. On PyTorch the adapter also delivers 1.6 times as many batches per
second as a `PyDataset` around `numpy_loader` (32 images of 96 x 96 pixels from the cache, median of 7 rounds in turns).

Keras drops `y`, `sample_weight` and `class_weight` beside such an adapter and does not tell it, so that they are looked up in
the frame of the caller.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import keras

from tfprep.errors import LoaderError
from tfprep.load.jax_loader import check_distribution, check_elements, check_equal_parts, in_types_of_jax, jax_hosts
from tfprep.load.loader import NumpyLoader, Pass
from tfprep.load.pipeline import Pipeline
from tfprep.load.reader.batch import Batch
from tfprep.load.waits import note_loader

try:
    from keras.src.trainers.data_adapters.data_adapter import DataAdapter
except ImportError:  # found in no version yet
    DataAdapter = object

_ADAPTERS_SINCE = (3, 8)
"""The first version of Keras that takes adapters of other packages."""


class KerasLoader(NumpyLoader, DataAdapter):  # type: ignore[misc] # Keras is untyped
    """Input of `fit`, `evaluate` and `predict` on the backend that Keras runs on. Made by `Data.keras_loader`.

    The order, the passes, the length and the state are those of `numpy_loader`, which also a plain `for` gets. On JAX with
    several processes, and on PyTorch with `torch.distributed`, each process gets its part of every batch.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        version = tuple(int(part) for part in keras.__version__.split(".")[:2])
        if version < _ADAPTERS_SINCE or DataAdapter is object:
            raise LoaderError(
                f"keras_loader() needs a Keras that takes adapters of its input, from 3.8 on, and this is Keras "
                f"{keras.__version__}: pip install -U keras, or use loader() on TensorFlow, torch_loader() on PyTorch, or "
                "jax_loader() on JAX"
            )
        options, backend = pipeline.options, keras.backend.backend()
        if backend == "jax":
            check_distribution("keras_loader()", options)
            if options.hosts is None:  # the call initializes the devices
                pipeline = pipeline.on_host(jax_hosts())
        elif backend == "torch":
            from tfprep.load.torch_loader import torch_hosts

            pipeline = pipeline.on_host(torch_hosts())
        super().__init__(pipeline)
        if backend != "tensorflow":
            check_elements(pipeline.outputs, f"Keras on {backend}", text=False)
        if backend == "jax":
            check_equal_parts(pipeline.schedule)

    # --- the adapter, as Keras calls it -------------------------------------------------------------------------------

    @property
    def num_batches(self) -> int | None:
        """Batches of one pass; None for a pass without an end.

        Raises:
            LoaderError: `fit` or `evaluate` has an argument that Keras drops.
        """
        caller = sys._getframe(1)
        for name, instead in _DROPPED.items():
            if caller.f_code.co_name == "__init__" and caller.f_locals.get(name) is not None:
                raise LoaderError(
                    f"Keras applies {name}= to arrays and datasets, not to the batches of a loader: {instead}"
                )
        return None if self._epochs is None else len(self)

    batch_size = has_partial_batch = partial_batch_size = None
    """Keras asks for them only where it makes the batches itself."""

    def get_numpy_iterator(self) -> Iterator[Any]:
        """One pass as NumPy arrays."""
        return self._pass(lambda element: element)

    def get_jax_iterator(self) -> Iterator[Any]:
        """One pass as NumPy arrays of types that JAX takes over as they are."""
        check_distribution("keras_loader()", self.pipeline.options)
        return self._pass(partial(keras.tree.map_structure, in_types_of_jax))

    def get_torch_dataloader(self) -> Iterator[Any]:
        """One pass as tensors on Keras's device."""
        from tfprep.load.torch_loader import tensors_of

        return self._pass(lambda each: keras.tree.map_structure(keras.ops.convert_to_tensor, tensors_of(each)))

    def get_tf_dataset(self) -> Any:
        """The `tf.data.Dataset` of `Data.loader`."""
        from tfprep.load.tensorflow.loader import make_loader

        return make_loader(self.pipeline, self.progress, self._epochs)

    def _pass(self, convert: Callable[[Any], Any]) -> Pass:
        def element(batch: Batch) -> Any:
            note_loader(self)
            return convert(self._element(batch))

        return Pass(self.pipeline, self.progress, element, self._epochs, for_framework=True)


_DROPPED = {
    "y": "name the targets with targets=",
    "sample_weight": "name a stored number or map with sample_weight= of keras_loader()",
    "class_weight": "draw classes more or less often with weights= or balance= of keras_loader(), or store a weight for each "
    "sample and name it with sample_weight=",
}
"""Arguments of `fit` and `evaluate` that Keras drops, and what to use instead."""

"""tfprep: image preprocessing done once, ahead of training, and a loader that keeps the accelerator fed.

    tfprep.build(recipe, out)         the offline stage; `tfprep build` on the command line
    tfprep.open(folder)               a built dataset; `.loader("train", batch_size=32)` is a tf.data.Dataset
    tfprep.load.LoaderOptions         the options of all loaders
    tfprep.mix({a: 0.7, b: 0.3})      several datasets as one
    tfprep.Recipe                     what to build: a source, geometry, derived inputs, color, codecs
    tfprep.sources .augment .derive .codecs     the parts of a recipe; a loader takes those of augment and derive too
    tfprep.add_fields(folder, tfprep.ModelFields(...))      fields that a model computes, stored beside a dataset
    tfprep.convert_boxes(boxes, "rel_yxyx", size=(h, w))    boxes in a form of Keras
    tfprep.train                      what limits a training: its input, its traces, its memory
    tfprep.errors                     every exception that tfprep raises on purpose

Names are imported when they are first used. `import tfprep` takes no time, and only code that trains imports TensorFlow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfprep.optional import lazy_names

__version__ = "0.2.0.dev0"

if TYPE_CHECKING:
    from tfprep import augment, bench, builder, codecs, dataset, derive, errors, load, sources, train
    from tfprep.builder import build
    from tfprep.fields import convert_boxes
    from tfprep.load import mix, open
    from tfprep.model_fields import add_fields, remove_fields
    from tfprep.recipe import ModelFields, Recipe

__all__ = [
    "ModelFields", "Recipe", "__version__", "add_fields", "augment", "bench", "build", "builder", "codecs", "convert_boxes",
    "dataset", "derive", "errors", "load", "mix", "open", "remove_fields", "sources", "train",
]  # fmt: skip

_SUBMODULES = (
    "augment", "bench", "builder", "codecs", "dataset", "derive", "errors", "load", "sources", "train",
)  # fmt: skip

__getattr__, _ = lazy_names(
    __name__,
    {
        "fields": ["convert_boxes"],
        "load": ["mix", "open"],
        "builder": ["build"],
        "model_fields": ["add_fields", "remove_fields"],
        "recipe": ["ModelFields", "Recipe"],
    },
    _SUBMODULES,
)


def __dir__() -> list[str]:
    return sorted(__all__)

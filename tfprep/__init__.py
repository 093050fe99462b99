"""tfprep: image preprocessing done once, ahead of training; a loader that keeps the accelerator fed.

summary = tfprep.build("recipe.py", out="out/photos", data="photos")    # offline, without TensorFlow
data = tfprep.open("out/photos")
train = data.loader("train", batch_size=32, seed=0)                     # a tf.data.Dataset
"""

from tfprep import augment, codecs, derive, sources
from tfprep._version import __version__
from tfprep.recipe import Recipe

__all__ = ["Recipe", "__version__", "augment", "codecs", "derive", "sources"]

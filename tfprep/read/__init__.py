"""From a dataset to batches, without TensorFlow: order, record bytes, pixels decoded in place."""

from tfprep.read.options import LoaderOptions
from tfprep.read.pipeline import Pipeline, Source

__all__ = ["LoaderOptions", "Pipeline", "Source"]

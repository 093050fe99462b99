"""Imports TensorFlow without the lines that its C++ side prints before a Python setting can silence them."""

from __future__ import annotations

import os
import sys
import tempfile

from tfprep.optional import require_package


def start_tensorflow(feature: str = "this script") -> None:
    """Import TensorFlow and list its devices with standard error redirected to a file, which is printed only on failure.

    Raises:
        MissingDependencyError: If TensorFlow is not installed. The message names `feature`.
    """
    require_package("tensorflow", feature)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sys.stderr.flush()
    with tempfile.TemporaryFile() as aside:
        kept = os.dup(2)
        os.dup2(aside.fileno(), 2)
        try:
            import tensorflow as tf

            tf.config.list_logical_devices()
        except BaseException:
            aside.seek(0)
            os.write(kept, aside.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)

"""TensorFlow's start, without what its C++ side prints before any setting of Python's can silence it."""

from __future__ import annotations

import os
import sys
import tempfile


def start_tensorflow() -> None:
    """Import TensorFlow and look for devices with standard error put aside; it is shown only if that fails."""
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

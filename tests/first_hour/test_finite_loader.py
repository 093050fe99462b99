"""A newcomer's first script, written from README and docs/loader.md alone: nothing runs for ever, and Keras warns of nothing."""

from tests.warm_python import run_python

SCRIPT = """
import warnings
warnings.simplefilter("error")
import sys
import keras
import tensorflow as tf
import tfprep

data = tfprep.open(sys.argv[1])
print(repr(data))
options = {"batch_size": 8, "inputs": "image", "targets": "label"}
train = data.loader("train", seed=0, dtype=tf.float32, **options)
val = data.loader("val", dtype=tf.float32, **options)
print(train, len(train))
print(val, len(val))
model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(3)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
history = model.fit(train, epochs=2, validation_data=val, verbose=0)
print(len(history.history["val_loss"]), train.next_step)
train.save(sys.argv[2])
print(len(tf.data.Dataset.load(sys.argv[2])))
print(sum(1 for _ in train), sum(1 for _ in val))
"""


def test_a_first_script(photos, tmp_path):
    """50 samples are 6 full batches, 11 are 2."""
    done = run_python(["-c", SCRIPT, str(photos.path), str(tmp_path / "saved")])
    assert done.returncode == 0, done.stderr[-2000:]
    dataset, train, val, *rest = done.stdout.splitlines()
    assert len(dataset) < 400
    assert "for training (training=True): a pass is an epoch" in train
    assert train.endswith("> 6")
    assert "for evaluation (training=False)" in val
    assert val.endswith("> 2")
    assert rest == ["2 12", "6", "6 2"]

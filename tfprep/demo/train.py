"""The demo's training: a small network learns to mark the leaves from RGB and click maps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfprep.demo.scenes import LEAF
from tfprep.load import Data

BATCH = 16


def train(data: Data, steps: int, on_step: Callable[[int, float], None]) -> dict[str, float]:
    """Train for `steps` steps of 16 scenes; `on_step` is called with the number of each step and its loss.

    Returns:
        The mean losses of the first and of the last ten steps, and the intersection over union of leaves on validation scenes.
    """
    import keras

    keras.utils.set_random_seed(0)
    options: dict[str, Any] = {"batch_size": BATCH, "inputs": ["image", "clicks"], "targets": "mask"}
    model = _network(keras)
    model.compile(keras.optimizers.Adam(3e-3), keras.losses.BinaryCrossentropy(from_logits=True))
    losses: list[float] = []

    def note(step: int, logs: dict[str, Any]) -> None:
        losses.append(float(logs["loss"]))
        on_step(len(losses), losses[-1])

    loader = data.loader("train", seed=0, **options)
    model.fit(
        loader.repeat().map(_leaf), steps_per_epoch=steps, epochs=1, verbose=0, shuffle=False,
        callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=note)],
    )  # fmt: skip
    means = zip([0.0, *losses], losses, strict=False)  # Keras gives the mean of the steps so far
    losses = [after * (n + 1) - before * n for n, (before, after) in enumerate(means)]
    both = either = 0
    for x, leaf in data.loader("val", **options).map(_leaf):
        predicted, target = model(x, training=False).numpy() > 0, leaf.numpy() > 0
        both += int((predicted & target).sum())
        either += int((predicted | target).sum())
    iou = both / either
    loader.close()
    first, last = (sum(ten) / 10 for ten in (losses[:10], losses[-10:]))
    return {"steps": steps, "first_loss": first, "last_loss": last, "held_out_iou": iou}


def _leaf(x: Any, mask: Any) -> tuple[Any, Any]:
    import tensorflow as tf

    return x, tf.cast(mask == LEAF, tf.float32)


def _network(keras: Any) -> Any:
    """An encoder and decoder with skips: 128 x 128 x 5 to 128 x 128 logits."""
    layers = keras.layers

    def convolution(x: Any, channels: int, strides: int = 1) -> Any:
        x = layers.Conv2D(channels, 3, strides, padding="same", use_bias=False)(x)
        return layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))

    inputs = layers.Input((128, 128, 5), dtype="uint8")
    x, skips = layers.Rescaling(1 / 255)(inputs), []
    for channels in (12, 24, 48):
        x = convolution(x, channels, strides=2)
        skips.append(x)
    for skip in reversed(skips[:-1]):
        x = convolution(layers.Concatenate()([layers.UpSampling2D()(x), skip]), skip.shape[-1])
    x = layers.UpSampling2D(interpolation="bilinear")(layers.Conv2D(1, 1)(x))
    return keras.Model(inputs, layers.Reshape((128, 128))(x))

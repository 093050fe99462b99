"""Trains a small network on the dataset of camvid_clicks.py: from RGB and two click maps to the mask of the cars.

After 'Deep Interactive Object Selection' (Xu et al., CVPR 2016), with a network that two CPU cores can train. Reports the
intersection over union (IoU) on the held-out frames beside that of the majority class, which is: no car anywhere.
Run: python pipelines/train_clicks.py out/clicks
"""

from __future__ import annotations

import argparse
import json

import keras
import tensorflow as tf
from keras import layers

import tfprep

CAR, VOID = 8, 11


def network(size: tuple[int, int]) -> keras.Model:
    """A U-Net of 0.2 million parameters that works at half the resolution and below."""
    image_and_clicks = layers.Input((*size, 5), dtype="uint8")
    x = layers.Rescaling(1 / 255)(image_and_clicks)
    skips = []
    for channels in (16, 32, 64):
        x = convolution(convolution(x, channels, strides=2), channels)
        skips.append(x)
    x = convolution(convolution(x, 96, strides=2), 96)
    for skip in reversed(skips):
        x = layers.Concatenate()([layers.UpSampling2D()(x), skip])
        x = convolution(x, skip.shape[-1])
    x = layers.UpSampling2D(interpolation="bilinear")(layers.Conv2D(1, 1)(x))
    return keras.Model(image_and_clicks, x)


def convolution(x: keras.KerasTensor, channels: int, strides: int = 1) -> keras.KerasTensor:
    x = layers.Conv2D(channels, 3, strides, padding="same", use_bias=False)(x)
    return layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))


def car_or_not(x: tf.Tensor, mask: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Targets [B, H, W, 1], and weights [B, H, W] that leave out the void."""
    return x, tf.cast(mask == CAR, tf.float32)[..., None], tf.cast(mask != VOID, tf.float32)


def held_out_iou(model: keras.Model, batches: tf.data.Dataset) -> dict[str, float]:
    """IoU of cars and of the rest over all pixels of the held-out frames that are not void, and the same for 'no car'."""
    inside = {"both": 0.0, "cars": 0.0, "found": 0.0, "all": 0.0}
    for x, target, weight in batches:
        cars = target[..., 0] * weight
        found = tf.cast(model(x, training=False)[..., 0] > 0, tf.float32) * weight
        inside["both"] += float(tf.reduce_sum(found * cars))
        inside["cars"] += float(tf.reduce_sum(cars))
        inside["found"] += float(tf.reduce_sum(found))
        inside["all"] += float(tf.reduce_sum(weight))
    either = inside["cars"] + inside["found"] - inside["both"]
    rest = (inside["all"] - either) / (inside["all"] - inside["both"])
    car = inside["both"] / either
    return {"iou_car": car, "mean_iou": (car + rest) / 2, "majority_mean_iou": (1 - inside["cars"] / inside["all"]) / 2}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", help="the built dataset")
    options.add_argument("--epochs", type=int, default=12)
    options.add_argument("--batch", type=int, default=8)
    given = options.parse_args()
    keras.utils.set_random_seed(0)

    data = tfprep.open(given.folder)
    wanted = {"batch_size": given.batch, "inputs": ["image", "clicks"], "targets": "mask"}
    train = data.loader("train", seed=0, **wanted)
    val = data.loader("val", **wanted).map(car_or_not)

    train = train.repeat(4)  # each sample in each of its four variants
    model = network((320, 320))
    model.compile(
        keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(3e-3, len(train) * given.epochs)),
        keras.losses.BinaryCrossentropy(from_logits=True),
    )
    model.fit(train.map(car_or_not), epochs=given.epochs, shuffle=False, verbose=2)
    print(json.dumps({name: round(value, 3) for name, value in held_out_iou(model, val).items()}))


if __name__ == "__main__":
    main()

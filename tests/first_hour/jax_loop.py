"""A newcomer writes a training loop in JAX.

python jax_loop.py DATASET
"""

import sys

import jax
import jax.numpy as jnp

import tfprep


@jax.jit
def train_step(weights, images, labels):
    def loss(weights):
        logits = images.reshape(len(images), -1).astype(jnp.float32) / 255 @ weights
        return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(len(labels)), labels])

    value, gradient = jax.value_and_grad(loss)(weights)
    return weights - 0.01 * gradient, value


data = tfprep.open(sys.argv[1])
train = data.jax_loader("train", batch_size=8, seed=0, inputs="image", targets="label")
weights = jnp.zeros([16 * 16 * 3, 2])
for epoch in range(2):
    for images, labels in train:
        weights, loss = train_step(weights, images, labels)
    print("epoch", epoch, "loss", float(loss), "steps", len(train))

"""A newcomer trains on two hosts: a loop in JAX first, then Keras with keras.distribution.

python two_hosts_jax.py COORDINATOR INDEX DATASET
"""

import json
import sys

import jax
import keras
import numpy as np

import tfprep
from tfprep.errors import LoaderError

jax.distributed.initialize(sys.argv[1], num_processes=2, process_id=int(sys.argv[2]))
data = tfprep.open(sys.argv[3])
report = {"processes": jax.process_count()}

mesh = jax.make_mesh((jax.device_count(),), ("batch",))
one_part_each = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
the_same = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
total = jax.jit(lambda labels: labels.sum(), out_shardings=the_same)
keys, sums = [], []
for batch in data.jax_loader("train", 10, sharding=one_part_each, seed=3, fields=["key", "label"]):
    keys.append(batch["key"].tolist())
    assert batch["label"].shape == (10,), batch["label"].shape
    sums.append(int(total(batch["label"])))
report["jax_loader"] = {"keys": keys, "sums": sums}

options = {"seed": 3, "inputs": "image", "targets": "label"}
keras.distribution.set_distribution(keras.distribution.DataParallel())
try:
    data.keras_loader("train", 10, **options)
except LoaderError as error:
    report["refused"] = str(error)
keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
try:
    data.keras_loader("train", 9, **options)
except LoaderError as error:
    report["uneven"] = str(error)
keras.utils.set_random_seed(0)
layers = keras.layers
model = keras.Sequential([keras.Input([24, 32, 3]), layers.Rescaling(1 / 255), layers.Flatten(), layers.Dense(3)])
model.compile(keras.optimizers.SGD(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
weights = np.random.default_rng(0).normal(size=(24 * 32 * 3, 3)).astype("float32") * 0.01
model.set_weights([weights, np.zeros(3, "float32")])
train = data.keras_loader("train", 10, **options)
model.fit(train, epochs=2, shuffle=False, verbose=0)
report["keras"] = {"samples": train.stats["samples"], "bias": np.asarray(model.get_weights()[1]).tolist()}
print(json.dumps(report))

"""A newcomer's first hour, from docs/start.md and docs/training.md: on TensorFlow, JAX or PyTorch, whatever KERAS_BACKEND names.

python hour.py prepare FOLDER    draws photos, writes a recipe, builds and shows it (needs OpenCV)
python hour.py train FOLDER      looks at the dataset, trains, is interrupted within an epoch, and continues
"""

import importlib.util
import json
import os
import subprocess
import sys

STOPPED_AT = 9
"""Steps before the first training ends, as if it had been killed: within an epoch."""


def tfprep_command(line):
    """Run a line of the pages as a command of its own."""
    done = subprocess.run([sys.executable, "-m", *line.split()], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
    print(f"$ {line}\n{done.stdout}")


def prepare():
    tfprep_command("tfprep demo --only-data --out demo --scenes 30")
    tfprep_command("tfprep init demo/objects --out objects.py")
    with open("objects.py") as file:
        recipe = file.read()
    assert "224, 224" in recipe
    with open("objects.py", "w") as file:
        file.write(recipe.replace("224, 224", "32, 32"))
    tfprep_command("tfprep build objects.py --out out/objects")
    tfprep_command("tfprep show out/objects")


def network(classes, keras):
    layers = keras.layers
    stack = [layers.Rescaling(1 / 255), layers.Flatten(), layers.Dropout(0.2, seed=1), layers.Dense(classes)]
    model = keras.Sequential([keras.Input((32, 32, 3)), *stack])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    return model


def train():
    for line in (
        "tfprep --version",
        "tfprep info out/objects",
        "tfprep verify out/objects",
        "tfprep check out/objects",
    ):
        tfprep_command(line)
    import keras
    import numpy as np

    import tfprep

    backend = keras.backend.backend()
    data = tfprep.open("out/objects")
    options = {"batch_size": 4, "inputs": "image", "targets": "label"}
    make = data.loader if backend == "tensorflow" else data.keras_loader
    checkpoint, ends = "run.keras", []

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            ends.append(batch)
            if len(ends) == STOPPED_AT:
                raise KeyboardInterrupt

    def run(*more):
        keras.utils.set_random_seed(0)
        saved = os.path.exists(checkpoint)
        model = keras.models.load_model(checkpoint) if saved else network(len(data.class_names), keras)
        start = int(np.asarray(model.optimizer.iterations))
        batches = make("train", seed=0, start_step=start, **options)
        saves = [keras.callbacks.ModelCheckpoint(checkpoint, save_freq=4), *more]
        logs = [tfprep.train.InputMonitor("logs")]
        first = start // len(batches)
        history = model.fit(
            batches, initial_epoch=first, epochs=4, shuffle=False,  # Keras warns that it does not shuffle a dataset
            validation_data=make("val", **options), callbacks=[*saves, *logs],
        )  # fmt: skip
        return start, len(batches), int(np.asarray(model.optimizer.iterations)), history

    try:
        run(Stop())
    except KeyboardInterrupt:
        print("interrupted, as by Ctrl-C")
    start, epoch, steps, history = run()
    assert start == STOPPED_AT - 1
    assert start % epoch, "the checkpoint is within an epoch"
    assert steps == start + (4 - start // epoch) * epoch, "each epoch of fit has the steps of an epoch"
    print("losses", history.history["loss"], "val_accuracy", history.history["val_accuracy"][-1])
    assert history.history["loss"][-1] < history.history["loss"][0]
    assert os.path.getsize("logs/input.jsonl")
    own_loop(backend, data, options)


def own_loop(backend, data, options):
    """A training loop's input, in the framework's own arrays, without Keras."""
    name = {"tensorflow": "loader", "jax": "jax_loader", "torch": "torch_loader"}[backend]
    shapes = {tuple(images.shape) for images, labels in getattr(data, name)("train", seed=0, **options)}
    assert shapes == {(4, 32, 32, 3)}, shapes
    assert ("tensorflow" in sys.modules) == (backend == "tensorflow")
    print(json.dumps({"backend": backend, "opencv": importlib.util.find_spec("cv2") is not None}))


if __name__ == "__main__":
    os.makedirs(sys.argv[2], exist_ok=True)
    os.chdir(sys.argv[2])
    {"prepare": prepare, "train": train}[sys.argv[1]]()

"""A newcomer trains on photos in class folders with Keras, on the backend that KERAS_BACKEND names, and continues later.

python any_backend.py PHOTOS OUT
"""

import json
import sys
from pathlib import Path

import keras

import tfprep
from tfprep import Recipe, augment, codecs, sources

photos, out = Path(sys.argv[1]), Path(sys.argv[2])
recipe = Recipe(
    name="photos",
    source=sources.Folder("{split}/{label}/*.png"),
    geometry=[augment.Flip(p=0.5), augment.Crop(16, 16)],
    variants={"train": 2},
    store={"image": codecs.Jpeg(95), "label": codecs.Scalar()},
)
if __name__ == "__main__":
    tfprep.build(recipe, out / "dataset", data=photos)
    data = tfprep.open(out / "dataset")
    train = data.keras_loader("train", batch_size=8, seed=0, inputs="image", targets="label")
    val = data.keras_loader("val", batch_size=8, inputs="image", targets="label")
    model = keras.Sequential([keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(2)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    monitor = tfprep.train.InputMonitor(out / "logs")
    history = model.fit(train, epochs=2, validation_data=val, callbacks=[monitor])
    print("accuracy", history.history["val_accuracy"][-1])

    state = train.state_at(2 * len(train))
    (out / "state.json").write_text(json.dumps(state))
    later = data.keras_loader("train", batch_size=8, seed=0, inputs="image", targets="label")
    step = later.step_of(json.loads((out / "state.json").read_text()))
    later = data.keras_loader("train", batch_size=8, seed=0, inputs="image", targets="label", start_step=step)
    model.fit(later, epochs=3, initial_epoch=2, validation_data=val)
    print("tensorflow imported:", "tensorflow" in sys.modules)

"""Latents for diffusion: photos at 64 x 64 pixels and their mirror images, and what a VAE and a text encoder make of each.

Data: class folders; `tfprep demo --only-data --out demo --scenes 120` draws 120 photos in 3 classes. 216 records, 1.4 MB, 1 s.
Run: tfprep build latents.py --data demo/objects --out demo/latents
     tfprep fields add demo/latents latents.py    (docs/tutorials/embeddings.md makes encoders.keras, which it reads)
"""

from pathlib import Path

import numpy as np

from tfprep import ModelFields, Recipe, augment, codecs, sources

HERE = Path(__file__).parent
CAPTIONS = ["a photo of a leaf", "a photo of a star", "a photo of a stone"]

RECIPE = Recipe(
    name="things",
    source=sources.Folder(splits=sources.Fractions(train=0.8, val=0.2, stratify="label")),
    geometry=[
        augment.Resize(shorter=64),
        augment.CenterCrop(64, 64),
        augment.Flip(p=1.0),
    ],
    variants={"train": 2},
    store={"image": codecs.Png(), "label": codecs.Scalar()},
    seed=1,
)


def encoders():
    """Load both encoders; called once in each process that computes."""
    import keras

    model = keras.saving.load_model(HERE / "encoders.keras")
    tokens = np.array([list(caption.ljust(20).encode()) for caption in CAPTIONS])

    def compute(batch):
        moments, text = model.predict_on_batch([batch["image"], tokens[batch["label"]]])
        return {"moments": moments, "clip_embeddings": text}

    return compute


FIELDS = ModelFields(
    name="latents",
    model=encoders,
    inputs=["image", "label"],
    store={"moments": codecs.Raw("float32"), "clip_embeddings": codecs.Raw("float32")},
    files=["encoders.keras"],
)

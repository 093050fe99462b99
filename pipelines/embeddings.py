"""Embeddings: photos of one object at 64 x 64 pixels in 4 variants, and what a frozen network makes of each stored variant.

Data: class folders; `tfprep demo --only-data --out demo --scenes 120` draws 120 photos in 3 classes. 300 records, 2.0 MB, 1 s.
Run: tfprep build embeddings.py --data demo/objects --out demo/embeddings
     tfprep fields add demo/embeddings embeddings.py    (docs/tutorials/embeddings.md makes frozen.keras, which it reads)
"""

from pathlib import Path

from tfprep import ModelFields, Recipe, augment, codecs, sources

HERE = Path(__file__).parent

RECIPE = Recipe(
    name="things",
    source=sources.Folder(splits=sources.Fractions(train=0.5, val=0.5, stratify="label")),
    geometry=[augment.RandomResizedCrop(64, 64, scale=(0.5, 1.0)), augment.Flip()],
    variants={"train": 4},
    store={"image": codecs.Png(), "label": codecs.Scalar()},
    seed=1,
)


def frozen():
    """Load the network; called once in each process that computes."""
    import keras

    model = keras.saving.load_model(HERE / "frozen.keras")
    return lambda batch: {"embedding": model.predict_on_batch(batch["image"])}


FIELDS = ModelFields(
    model=frozen,
    inputs=["image"],
    store={"embedding": codecs.Raw("float16")},
    files=["frozen.keras"],
)

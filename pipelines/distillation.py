"""Distillation: photos of one object at 48 x 48 pixels in 8 variants, and what a teacher says of each stored variant.

Data: class folders; `tfprep demo --only-data --out demo --scenes 300` draws 300 photos in 3 classes. 1,350 records, 5.4 MB, 2 s.
Run: tfprep build distillation.py --data demo/objects --out demo/distillation
     tfprep fields add demo/distillation distillation.py    (docs/tutorials/distillation.md makes teacher.keras, which it reads)
"""

from pathlib import Path

from tfprep import ModelFields, Recipe, augment, codecs, sources

HERE = Path(__file__).parent

RECIPE = Recipe(
    name="things",
    source=sources.Folder(splits=sources.Fractions(train=0.5, val=0.5, stratify="label")),
    geometry=[
        augment.RandomResizedCrop(48, 48, scale=(0.3, 1.0)),
        augment.Flip(),
        augment.Rotate(20),
    ],
    color=[augment.Brightness(0.3), augment.Contrast(0.3), augment.Hue(0.1)],
    variants={"train": 8},
    store={"image": codecs.Png(), "label": codecs.Scalar()},
    seed=1,
)


def teacher():
    """Load the teacher; called once in each process that computes."""
    import keras

    logits = keras.saving.load_model(HERE / "teacher.keras")
    model = keras.Sequential([logits, keras.layers.Softmax()])
    return lambda batch: {"teacher": model.predict_on_batch(batch["image"])}


FIELDS = ModelFields(
    model=teacher,
    inputs=["image"],
    store={"teacher": codecs.Raw("float16")},
    splits=["train"],
    files=["teacher.keras"],
)

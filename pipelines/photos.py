"""Photo classification: class folders of photos, 224 x 224 crops, 2 variants.

Data: any folder of class folders (see data/README.md). With 300 ImageNet samples in 5 classes: 240 training and 60 validation
images, 540 records.
Run: tfprep build pipelines/photos.py --data data/photos --out out/photos
"""

from tfprep import Recipe, augment, codecs, sources

RECIPE = Recipe(
    name="photos",
    source=sources.Folder(splits=sources.Fractions(train=0.8, val=0.2, stratify="label")),
    geometry=[augment.RandomResizedCrop(224, 224), augment.Flip(p=0.5)],
    color=[augment.Brightness(0.2), augment.Contrast(0.2), augment.Saturation(0.2)],
    variants={"train": 2},
    store={"image": codecs.Jpeg(95), "label": codecs.Scalar()},
    seed=1,
)

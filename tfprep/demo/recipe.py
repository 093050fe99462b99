"""The demo's recipe: interactive segmentation of leaves, RGB and two maps of distance to a user's clicks, 4 variants.

Run: tfprep build pipelines/demo.py --data out/demo/raw --out out/demo/built
"""

from tfprep import augment, codecs, derive, sources
from tfprep.demo.scenes import CLASSES, LEAF
from tfprep.recipe import Recipe

RECIPE = Recipe(
    name="demo",
    source=sources.Paired(image="{split}/images/*.jpg", mask="{split}/masks/*.png", classes=CLASSES),
    geometry=[augment.Rotate(20), augment.Scale((0.9, 1.4)), augment.Resize(128, 128), augment.Flip()],
    derive={"clicks": derive.Clicks(mask="mask", target=LEAF)},
    color=[augment.Brightness(0.2), augment.Contrast(0.2), augment.Hue(0.05)],
    border="reflect",
    variants={"train": 4},
    store={"image": codecs.Jpeg(95), "mask": codecs.Raw(), "clicks": codecs.Raw()},
    seed=3,
)

"""COCO 2017, object detection: images of 640 x 640 and the boxes of 80 classes, for a detector in Keras.

Data: see data/README.md; 118,287 training and 5,000 validation images. Images without objects are kept, crowds have no box.
Run: tfprep build pipelines/coco_detection.py --data data/coco --out out/coco_detection

The targets of a Keras detector, boxes as `rel_yxyx` and -1 where an image has fewer than 100 objects:

    def targets(image, objects):
        return image, {**objects, "boxes": tfprep.convert_boxes(objects["boxes"], "rel_yxyx", size=(640, 640))}

    wanted = {"inputs": "image", "targets": {"boxes": "boxes", "labels": "box_labels"}, "pad": {"boxes": 100, "box_labels": 100}}
    train = tfprep.open("out/coco_detection").loader("train", batch_size=16, **wanted).map(targets)
"""

from tfprep import Recipe, augment, codecs, sources

RECIPE = Recipe(
    name="coco_detection",
    source=sources.Coco(
        annotations="annotations/instances_{split}2017.json",
        images="{split}2017/{file_name}",
        fields=("boxes", "box_labels"),
        outside="cut",
    ),
    geometry=[augment.Scale((0.8, 1.2)), augment.Flip(p=0.5), augment.Resize(640, 640, pad=True)],
    color=[augment.Brightness(0.2), augment.Contrast(0.2), augment.Saturation(0.2)],
    min_visible=0.2,
    fill={"image": (114, 114, 114)},
    variants={"train": 2},
    store={"image": codecs.Jpeg(90), "boxes": codecs.Scalar(), "box_labels": codecs.Scalar()},
    seed=7,
)

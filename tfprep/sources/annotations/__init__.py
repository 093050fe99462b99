"""Annotations of objects in images: COCO, Pascal VOC, YOLO, LabelMe and tables.

Every source here turns the objects of an image into one raw part, `objects` (`tfprep.sources.annotations.objects`), and makes the
same fields of it, so that a recipe for one format is a recipe for all of them.
"""

from tfprep.sources.annotations.coco import Coco
from tfprep.sources.annotations.image_files import LabelMe, Voc
from tfprep.sources.annotations.object_table import ObjectTable
from tfprep.sources.annotations.yolo import Yolo

__all__ = ["Coco", "LabelMe", "ObjectTable", "Voc", "Yolo"]

"""The page about existing TFRecords: its commands, its code and its JSON, in the order of the page."""

import json
import re

import numpy as np

import tfprep
from tests.commands import status_of
from tests.docs import pages
from tests.examples import image_bytes, serialized, write

PAGE = pages.text("existing-tfrecords.md")
COMMANDS = [line for block in re.findall(r"```\n(.*?)```", PAGE, re.S) for line in block.splitlines()]


def test_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for split, count in (("train", 30), ("val", 5)):
        examples = [
            {
                "image/encoded": image_bytes(rng, (18 + number % 5, 30)),
                "image/height": 18 + number % 5,
                "image/class/label": number % 3,
                "image/annotation": image_bytes(rng, (4, 6), "PNG", "L"),
                "depth": rng.integers(0, 60_000, (4, 6), np.uint16).tobytes(),
            }
            for number in range(count)
        ]
        write(tmp_path / "photos" / f"{split}-00000.tfrecord", map(serialized, examples))
    photos = [line for line in COMMANDS if "photos" in line]
    assert len(photos) == 2
    for line in photos:
        assert status_of(line) == 0
    (code,) = pages.blocks("existing-tfrecords.md")
    names = {}
    exec(code, names)
    assert names["images"].shape == (4, 32, 32, 3)
    assert sorted(names["labels"].numpy().tolist())[0] in (0, 1, 2)
    (declared,) = re.findall(r"```json\n(.*?)```", PAGE, re.S)
    (tmp_path / "declared.json").write_text(declared)
    assert status_of(photos[0] + " --features declared.json") == 0
    data = tfprep.open("photos")
    assert data.fields["depth"].shape == tuple(json.loads(declared)["depth"]["shape"])
    assert data.fields["image_annotation"].kind == "mask"
    assert data.class_names == ("cat", "dog", "owl")
    assert status_of("tfprep verify photos") == 0

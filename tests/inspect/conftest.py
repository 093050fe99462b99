"""Small datasets of pictures that look like photos, built from files."""

import pytest

from tfprep import Recipe, codecs, sources
from tfprep.builder import BuildOptions, build


@pytest.fixture(scope="session")
def build_folder():
    """Builds images in `{split}/{label}/` without hashes or with them."""

    def run(raw, out, *, source=None, store=None, hash=True, name="photos", **options):
        recipe = Recipe(
            name=name, source=source or sources.Folder("{split}/{label}/**"),
            store=store or {"image": codecs.Png(), "label": codecs.Scalar()}, **options,
        )  # fmt: skip
        build(recipe, out, raw, options=BuildOptions(workers=0, hash=hash))
        return out

    return run

"""Commands on datasets at URLs: the same output as on the folder, or one error that says what to do."""

import pytest

from tests.photos import write_photos
from tests.storage.server import copied_to_memory
from tfprep import Recipe, codecs, sources
from tfprep.builder import BuildOptions, build
from tfprep.storage.store import open_store

pytest.importorskip("obstore")


@pytest.fixture
def url(photos):
    return copied_to_memory(photos.path)


@pytest.mark.parametrize(
    "command",
    [["info"], ["stats"], ["stats", "--json"], ["show", "--out", "sheet.png"], ["check"], ["export", "--out", "out"]],
    ids=" ".join,
)
def test_output_is_that_of_the_folder(run, photos, url, command, monkeypatch, tmp_path):
    name, *options = command
    results = []
    for number, place in enumerate((photos.path, url)):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        code, out, err = run(name, place, *options)
        results.append((code, (out + err).replace(str(place), "PLACE")))
    assert results[0] == results[1]


def test_diff_of_a_folder_and_a_url(run, photos, url):
    assert run("diff", photos.path, url)[0] == 0


def test_what_verify_says_is_what_mends(run, tmp_path):
    recipe = Recipe("small", sources.Folder("*.png"), {"image": codecs.Png()})
    url, raw = f"memory://{tmp_path.name}/built", write_photos(tmp_path, 4, "{number}.png")
    build(recipe, url, raw, options=BuildOptions(workers=0))
    store = open_store(url)
    name = next(info.name for info in store.list() if info.name.endswith("tfrecord-00000-of-00001"))
    content = bytearray(store.read(name))
    content[40] ^= 1
    store.write(name, bytes(content))
    code, text, _ = run("verify", url)
    assert (code, f"{name.removeprefix('shards/')}: its SHA-256 is not that of the build" in text) == (1, True)
    assert f"tfprep build RECIPE --out {url} --verify makes the damaged shards again" in text
    assert build(recipe, url, raw, options=BuildOptions(workers=0, verify=True)).built_shards == 1
    assert run("verify", url)[0] == 0

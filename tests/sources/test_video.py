"""Videos that PyAV wrote without loss, compared frame by frame with the pictures that went in."""

import struct
from fractions import Fraction

import numpy as np
import pytest

from tests.sources.building import built, fields_of, picture
from tfprep import codecs, sources
from tfprep.errors import MissingDependencyError

av = pytest.importorskip("av")
STORE = {"image": codecs.Png()}


def write(path, frames, codec="ffv1", pixels="bgr0", **context):
    """A video of 10 frames per second, of pictures by their number or of frames of 40 x 56 pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as video:
        stream = video.add_stream(codec, rate=10)
        stream.height, stream.width, stream.pix_fmt = 40, 56, pixels
        for name, value in context.items():
            setattr(stream.codec_context, name, value)
        for at, frame in enumerate(frames):
            shown = frame
            if not isinstance(frame, av.VideoFrame):
                shown = av.VideoFrame.from_ndarray(picture(frame) if isinstance(frame, int) else frame, format="rgb24")
            shown.pts, shown.time_base = at, Fraction(1, 10)
            video.mux(stream.encode(shown))
        video.mux(stream.encode())
    return path


def check(fields, path, numbers):
    assert {key for key in fields if key.startswith(path)} == {f"{path}/{number:06}" for number in numbers}
    for number in numbers:
        np.testing.assert_array_equal(fields[f"{path}/{number:06}"]["image"], picture(number))


@pytest.mark.parametrize(
    ("every", "numbers"),
    [(1, range(12)), (5, (0, 5, 10)), (99, (0,))],
)
def test_frames_at_a_distance(tmp_path, every, numbers):
    write(tmp_path / "raw/a.mkv", range(12))
    fields = fields_of(sources.Video("*.mkv", every), tmp_path / "raw", tmp_path / "out", store=STORE)
    check(fields, "a.mkv", numbers)


def test_another_version_of_the_decoder_makes_its_own_copy(tmp_path, staging, monkeypatch):
    write(tmp_path / "raw/a.mkv", range(2))
    listings = []
    for version in (av.__version__, av.__version__, f"{av.__version__}.1"):
        monkeypatch.setattr(av, "__version__", version)
        listings.append([entry.files for entry in sources.Video("*.mkv", 1).scan(tmp_path / "raw").entries])
        assert len(list(staging.iterdir())) == 1
    assert listings[0] == listings[1] != listings[2]


def test_colors_are_those_of_the_standard_that_the_file_names(tmp_path, monkeypatch):
    """Y, Cb, Cr = 100, 90, 200 by ITU-R BT.709, of narrow range: R = 1.164 (Y - 16) + 1.793 (Cr - 128), and so on."""
    frame = av.VideoFrame(56, 40, "yuv444p")
    for plane, value in zip(frame.planes, (100, 90, 200), strict=True):
        plane.update(bytes([value]) * plane.buffer_size)
    write(tmp_path / "raw/a.mkv", [frame], pixels="yuv444p", colorspace=1, color_range=1)
    source = sources.Video("*.mkv", every=1)
    fields = fields_of(source, tmp_path / "raw", tmp_path / "out", store=STORE)
    np.testing.assert_allclose(fields["a.mkv/000000"]["image"][20, 28], [227, 68, 18], atol=3)
    monkeypatch.setattr(av, "__version__", "16.1.0")
    with pytest.raises(MissingDependencyError, match=r"Video needs PyAV 17, not 16\.1\.0"):
        list(source.scan(tmp_path / "raw").entries)


def test_the_frames_of_a_file_are_in_one_split(tmp_path, staging):
    for name in "abcdefghijkl":
        write(tmp_path / f"raw/{'cat' if name < 'g' else 'dog'}/{name}.mkv", range(4))
    source = sources.Video("{label}/*.mkv", every=2, splits=sources.Fractions(train=0.5, val=0.5))
    listing = source.scan(tmp_path / "raw")
    assert listing.classes == {"label": ("cat", "dog")}
    splits = {}
    for entry in listing.entries:
        splits.setdefault(entry.key.rpartition("/")[0], set()).add(entry.split)
        assert entry.values == (int(entry.key.startswith("dog")),)
    assert len(splits) == 12
    assert all(len(names) == 1 for names in splits.values())
    assert len(set.union(*splits.values())) == 2
    assert len(list(staging.iterdir())) == 12


@pytest.mark.parametrize(
    ("matrix", "corner"),
    [
        ((0, -1, 1, 0), (1, 0)), ((0, 1, -1, 0), (0, 1)), ((-1, 0, 0, -1), (1, 1)),
        ((-1, 0, 0, 1), (0, 1)), ((1, 0, 0, -1), (1, 0)), ((0, 1, 1, 0), (0, 0)), ((0, -1, -1, 0), (1, 1)),
    ],
)  # fmt: skip
def test_frames_are_turned_and_mirrored_as_the_file_says(tmp_path, matrix, corner):
    """A mark at the top left of what is stored is shown in a corner: 1 at the bottom, and 1 at the right."""
    pixels = np.zeros((40, 56, 3), np.uint8)
    pixels[:10, :10] = 255
    path = write(tmp_path / "raw/a.mp4", [pixels], "mpeg4", "yuv420p")
    content = path.read_bytes()
    at = content.index(b"tkhd") + 44  # the matrix of the track: a, b, u, c, d, v, x, y, w
    numbers = struct.pack(">5i", *(value << 16 for value in (*matrix[:2], 0, *matrix[2:])))
    path.write_bytes(content[:at] + numbers + content[at + len(numbers) :])
    fields = fields_of(sources.Video("*.mp4", every=1), tmp_path / "raw", tmp_path / "out", store=STORE)
    image = fields["a.mp4/000000"]["image"][:, :, 0]
    assert image.shape == ((40, 56) if matrix[0] else (56, 40))
    bright = image[:: -1 if corner[0] else 1, :: -1 if corner[1] else 1]
    assert bright[:8, :8].mean() > 200
    assert bright[12:, 12:].mean() < 50


def test_a_file_without_frames_or_cut_short_is_rejected(tmp_path):
    root = tmp_path / "raw"
    whole = write(root / "whole.mkv", range(12)).read_bytes()
    (root / "empty.mkv").write_bytes(b"")
    (root / "text.mkv").write_bytes(b"#EXTM3U\nfile:///etc/passwd\n" * 20)
    with av.open(str(root / "none.mkv"), "w") as video:
        stream = video.add_stream("ffv1", rate=10)
        stream.height, stream.width, stream.pix_fmt = 40, 56, "bgr0"
        video.start_encoding()
    (root / "cut.mkv").write_bytes(whole[: len(whole) // 2])
    (root / "sound.mkv").write_bytes(sound(tmp_path / "sound.mkv").read_bytes())
    write(root / "depth.mkv", range(3), pixels="gray16le")
    fields, rejected = built(sources.Video("*.mkv", every=1), root, tmp_path / "out", store=STORE)
    check(fields, "whole.mkv", range(12))
    cut = sum(key.startswith("cut.mkv") for key in fields)
    assert 0 < cut < 12
    assert "it may be cut short" in rejected[f"cut.mkv/{cut:06}"]
    reasons = {key: reason for key, reason in rejected.items() if not key.startswith("cut.mkv")}
    assert set(reasons) == {f"{name}.mkv/000000" for name in ("empty", "text", "none", "sound", "depth")}
    assert "FFmpeg cannot decode it" in reasons["text.mkv/000000"]
    assert "gray of 16 bits a pixel" in reasons["depth.mkv/000000"]
    assert "the file has no video" in reasons["sound.mkv/000000"]
    assert "End of file" in reasons["none.mkv/000000"]


def sound(path):
    with av.open(str(path), "w") as file:
        stream = file.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
        frame.rate = 8000
        file.mux(stream.encode(frame))
        file.mux(stream.encode())
    return path

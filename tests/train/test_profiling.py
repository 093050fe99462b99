"""`profile` writes the profile of the steps that were asked for, which TensorBoard reads."""

import logging
from pathlib import Path
from typing import Any

import pytest

from tfprep.errors import TrainError


def test_the_steps_are_in_the_profile(tf: Any, dense: Any, pairs: Any, tmp_path: Path, caplog: Any) -> None:
    from tfprep.train import profile

    callback = profile(tmp_path, steps=(5, 9))
    with caplog.at_level(logging.WARNING, "tfprep.train"):
        dense.fit(pairs(48).batch(4).prefetch(1), verbose=0, shuffle=False, callbacks=[callback])
    assert callback.folder is not None
    assert f"profile: wrote {callback.folder}" in caplog.text
    (written,) = callback.folder.glob("*.xplane.pb")
    content = written.read_bytes()
    assert b"train" in content
    assert b"IteratorGetNext" in content
    tf.profiler.experimental.start(str(tmp_path))  # AlreadyExistsError if a profiler still runs
    tf.profiler.experimental.stop(save=False)


def test_a_training_that_ends_too_early_is_reported(dense: Any, pairs: Any, tmp_path: Path, caplog: Any) -> None:
    from tfprep.train import profile

    with caplog.at_level(logging.WARNING, "tfprep.train"):
        dense.fit(pairs(8).batch(4), verbose=0, shuffle=False, callbacks=[profile(tmp_path)])
    assert "the training ended before step 10; nothing was profiled" in caplog.text


def test_steps_are_checked(tmp_path: Path) -> None:
    from tfprep.train import profile

    with pytest.raises(TrainError, match=r"1 <= first <= last, got \(20, 10\)"):
        profile(tmp_path, steps=(20, 10))

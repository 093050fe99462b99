"""Keras callbacks of the loader. Importing this imports Keras."""

from __future__ import annotations

import functools
import json
import os
import traceback
from pathlib import Path
from typing import Any

import keras

from tfprep.errors import LoaderError
from tfprep.load.passes import Steps
from tfprep.storage.local import write_whole

STATE = ".loader.json"
"""End of the name of a state, after that of its checkpoint."""
SEEDS = "keras_seeds"
"""Entry of a state: those of the model's seed generators, in their order."""


class SaveLoaderState(keras.callbacks.Callback):  # type: ignore[misc] # Keras is untyped
    """Writes the loader's state with each checkpoint that is saved during `fit`, as `CHECKPOINT.loader.json`.

    The state is that of the step at which `model.save` or `model.save_weights` is called, whoever calls it and however often:
    `ModelCheckpoint`, also with `save_best_only=True`, `BackupAndRestore`, or a callback of the user. A state is removed before
    its checkpoint is replaced, so that no checkpoint has the state of another step. Steps are counted from the loader's
    `next_step` at the beginning of `fit`. Where the loader's `start_step` lies within an epoch, Keras's first epoch ends where
    the interrupted one would have ended. `OrbaxCheckpoint` saves into DIRECTORY/NUMBER, with the state beside it, and
    `saved_step(loader, DIRECTORY)` reads that of the last checkpoint. Keras saves no states of `keras.random.SeedGenerator`, of
    which each `Dropout` has one: they are saved here, and `restore_seeds` sets them.

        start = saved_step(data.loader("train", **options), "run/backup/latest.weights.h5")
        train = data.loader("train", start_step=start, **options)
        callbacks = [SaveLoaderState(train), keras.callbacks.BackupAndRestore("run/backup", save_freq=500)]

    Args:
        loader: The loader that `fit` reads, as `Data.loader` returns it, itself or behind others (`train.map(...)`).

    Raises:
        LoaderError: During `fit`, when a checkpoint is saved: a callback that stands before this one in `callbacks` saves the
            model at the end of a step; `fit` does not read the loader's epochs one after another (`train.take(100)`, or
            somebody else reads them too), so that nobody knows the step; or `OrbaxCheckpoint` saves to a URL.
    """

    def __init__(self, loader: Any) -> None:
        super().__init__()
        self._loader = loader
        self._first = 0  # the step that `fit` begins with
        self._steps = self._steps_before_epoch = 0
        self._elsewhere: Steps | None = None  # the pass that began while `fit` read another one, by its count
        self._pass: Steps | None = None  # the pass of the step before
        self._in_step = False
        self._history: Any = None
        self._first_end: int | None = None  # the step behind the rest of an epoch that `fit` begins with
        self._ends_epoch = False

    def on_train_begin(self, logs: Any = None) -> None:
        self._first, self._elsewhere, self._pass = self._loader.next_step, None, None
        self._steps = self._steps_before_epoch = 0
        self._in_step = False
        self._history = self.model.history  # each `fit` makes one
        length = (self.params or {}).get("steps") or len(self._loader)
        inside, resumes = self._first % length, self._first == self._loader.pipeline.options.start_step
        whole = self._loader.pipeline.passes.ends or not inside or not resumes
        self._first_end, self._ends_epoch = None if whole else self._first - inside + length, False
        self._restore_methods()  # those of a fit that ended with an error
        self.model.save = self._with_state(self.model.save)
        self.model.save_weights = self._with_state(self.model.save_weights)
        self.model.get_state_tree = self._with_state_for_orbax(self.model.get_state_tree)

    def on_train_end(self, logs: Any = None) -> None:
        self._restore_methods()

    def _restore_methods(self) -> None:
        for name in ("save", "save_weights", "get_state_tree"):
            self.model.__dict__.pop(name, None)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._steps_before_epoch = self._steps

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._in_step = True

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """`batch` is the last of those that one execution took."""
        before = self._first + self._steps
        self._steps, self._in_step = self._steps_before_epoch + batch + 1, False
        passes = self._loader.pipeline.passes
        latest, previous = passes.latest, self._pass
        self._pass = latest
        again = latest and previous and latest is not previous and latest.first == previous.first  # after a mere look
        if passes.ends:  # each pass is the same
            self._steps = 0 if self._steps >= len(self._loader) else self._steps
        elif again or (latest and not (latest.first <= before and (latest.stop is None or before < latest.stop))):
            self._elsewhere = self._elsewhere or latest
        elif latest and latest.stop is not None:
            # The last execution of a pass may have found fewer steps than it asked for.
            self._steps = min(self._steps, latest.stop - self._first)
        if self._first + self._steps == self._first_end:
            self._ends_epoch = self.model.stop_training = True  # ends the loop over the batches of an epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        end, self._first_end = self._first_end, None
        if self._ends_epoch and end is not None:
            self._ends_epoch = self.model.stop_training = False
            passes = self._loader.pipeline.passes
            if self._pass is not None and self._pass is passes.latest and self._pass.stop is not None:
                passes.move_to(end)

    def _with_state(self, save: Any) -> Any:
        @functools.wraps(save)
        def saving(filepath: str | os.PathLike[str], *args: Any, **options: Any) -> Any:
            if self._is_of_another_fit():
                return save(filepath, *args, **options)
            self._refuse_late_place()
            path = state_path(filepath)
            path.unlink(missing_ok=True)
            result = save(filepath, *args, **options)
            # Where an error ended a step, nobody knows whether the weights are those before or after it: no state then.
            if not self._in_step:
                self._write(path)
            return result

        return saving

    def _is_of_another_fit(self) -> bool:
        """Return whether the model is in another `fit`, after one with this callback has ended with an error."""
        return self.model.history is not self._history

    def _with_state_for_orbax(self, get_state_tree: Any) -> Any:
        """The method, which `OrbaxCheckpoint` calls to save: Orbax copies what it returns, and writes it later in a thread.

        A state of a checkpoint that Orbax never finished, or that it has deleted, stays for a while: `saved_step` looks for the
        checkpoint first.
        """

        @functools.wraps(get_state_tree)
        def saving(*args: Any, **options: Any) -> Any:
            checkpoint = None if self._is_of_another_fit() else _orbax_checkpoint()
            if checkpoint is None:
                return get_state_tree(*args, **options)
            self._refuse_late_place()
            if not self._in_step:
                checkpoint.parent.mkdir(parents=True, exist_ok=True)
                steps = _orbax_steps(checkpoint.parent)
                for path in checkpoint.parent.glob(f"*{STATE}"):
                    number = path.name.removesuffix(STATE)  # of a deleted checkpoint, before the last finished one
                    if steps and number.isdigit() and int(number) < steps[-1] and int(number) not in steps:
                        path.unlink(missing_ok=True)
                self._write(state_path(checkpoint))
            return get_state_tree(*args, **options)

        return saving

    def _refuse_late_place(self) -> None:
        calls = (frame.f_code.co_name for frame, _ in traceback.walk_stack(None))
        if self._in_step and "on_train_batch_end" in calls:
            raise LoaderError(
                "SaveLoaderState stands behind a callback that saves the model: move it to the front of `callbacks`"
            )

    def _write(self, path: Path) -> None:
        step, elsewhere = self._first + self._steps, self._elsewhere
        if elsewhere is not None:
            end = "" if elsewhere.stop is None else f" to {elsewhere.stop}"
            raise LoaderError(
                f"SaveLoaderState counts {self._steps} steps from step {self._first} on, but the loader has delivered the "
                f"steps from {elsewhere.first} on{end}: fit does not read its epochs one after another. Pass fit the loader "
                "itself, train.map(...), or train.repeat() with steps_per_epoch, not a part of each epoch, and read it nowhere "
                "else meanwhile"
            )
        seeds = [keras.ops.convert_to_numpy(seed).tolist() for seed in _seeds(self.model)]
        write_whole(path, json.dumps({**self._loader.state_at(step), **({SEEDS: seeds} if seeds else {})}))


def _orbax_checkpoint() -> Path | None:
    """The folder that `OrbaxCheckpoint` saves to, where it is the caller; None where it is not.

    The callback passes it to nobody but Orbax, so it is read from the frame of its `_save_checkpoint` (Keras 3.12 to 3.15).
    """
    orbax = getattr(keras.callbacks, "OrbaxCheckpoint", None)  # older versions of Keras have none
    for frame, _ in traceback.walk_stack(None):
        callback = frame.f_locals.get("self")
        if orbax is not None and isinstance(callback, orbax) and "step" in frame.f_locals:
            directory = os.fspath(callback.directory)
            if "://" in directory:
                raise LoaderError(
                    f"SaveLoaderState writes to a local folder, and OrbaxCheckpoint saves to {directory}: save "
                    "loader.state_at(step) with your own count of steps"
                )
            return Path(directory) / str(frame.f_locals["step"])
    return None


def _orbax_steps(folder: Path) -> list[int]:
    """The numbers of the finished checkpoints of Orbax in a folder, which get their names when they are complete."""
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit() and path.is_dir())


def state_path(checkpoint: str | os.PathLike[str]) -> Path:
    """The path of the state that `SaveLoaderState` writes with a checkpoint."""
    return Path(f"{os.fspath(checkpoint)}{STATE}")


def _seeds(model: Any) -> list[Any]:
    """The states of the seed generators of a model's layers, as variables of Keras."""
    return [variable for variable in model.variables if variable.path.endswith("seed_generator_state")]


def restore_seeds(model: Any, checkpoint: str | os.PathLike[str]) -> None:
    """Let the random layers of a model (`Dropout`, noise, augmentation) go on as they stood at a checkpoint.

    Args:
        model: The model, with its layers built.
        checkpoint: The path of the checkpoint, as `saved_step` takes it; nothing is done if there is none yet.

    Raises:
        LoaderError: The model has another number of seed generators than the one that was saved, or the state is damaged.
    """
    path = _latest_state(checkpoint)
    if not path.exists():
        return
    saved, seeds = _read_state(path).get(SEEDS, []), _seeds(model)
    if len(saved) != len(seeds):
        raise LoaderError(f"{path} holds the states of {len(saved)} seed generators, and this model has {len(seeds)}")
    for seed, state in zip(seeds, saved, strict=True):
        seed.assign(state)


def _latest_state(checkpoint: str | os.PathLike[str]) -> Path:
    """The path of the state of a checkpoint; of a folder of Orbax that of its last one."""
    folder = Path(checkpoint)
    if folder.is_dir() and (steps := _orbax_steps(folder)):
        checkpoint = folder / str(steps[-1])
    return state_path(checkpoint)


def _read_state(path: Path) -> dict[str, Any]:
    try:
        state = json.loads(path.read_bytes())
        if not isinstance(state, dict):
            raise ValueError("it holds no JSON object")
    except (ValueError, RecursionError) as error:
        raise LoaderError(f"{path} is damaged ({error}). Continue from an older checkpoint, or begin anew") from error
    return state


def saved_step(loader: Any, checkpoint: str | os.PathLike[str]) -> int:
    """The step that comes after a checkpoint of `SaveLoaderState`; 0 if there is no checkpoint yet.

    Args:
        loader: A loader with the options of the run that continues.
        checkpoint: The path of the checkpoint; of `OrbaxCheckpoint` its `directory`, for the last one, or one in it.

    Returns:
        The step, as the option `start_step` takes it.

    Raises:
        LoaderError: The checkpoint has no state, because the run was killed while it was saved, or the state is damaged or of
            another run.
    """
    path = _latest_state(checkpoint)
    if path.exists():
        return int(loader.step_of(_read_state(path)))
    saved = path.with_name(path.name.removesuffix(STATE))
    if saved.exists():
        raise LoaderError(
            f"{saved} has no {path.name}: it was saved without SaveLoaderState, or the run was killed while it "
            "was saved. Continue from an older checkpoint, or begin anew"
        )
    return 0

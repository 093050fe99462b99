"""Opened datasets: their loaders, folds, mixes and normalization layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from tfprep.checks import column_name, is_number, whole_number
from tfprep.codecs import Scalar, Text
from tfprep.dataset import Dataset
from tfprep.dataset.dataset import read_dataset
from tfprep.errors import LoaderError
from tfprep.fields import RASTER_KINDS
from tfprep.load.loader import Loader
from tfprep.load.options import LoaderOptions, OnBad, ShuffleBuffer, Verify, deciding, loader_options, with_options
from tfprep.load.order.samplers import fold_of
from tfprep.load.outputs import channels_of, names_of
from tfprep.load.pipeline import Pipeline
from tfprep.load.reader.table import SplitRows
from tfprep.optional import require_package
from tfprep.storage.urls import PathOrUrl, folder_at, is_remote

if TYPE_CHECKING:
    import tensorflow as tf
    from PIL import Image

    from tfprep.load.jax_loader import JaxLoader
    from tfprep.load.keras_loader import KerasLoader
    from tfprep.load.random_access import BatchSampler, RandomAccess
    from tfprep.load.tensorflow_loader import TensorFlowLoader
    from tfprep.load.torch_loader import TorchLoader

Group: TypeAlias = "str | Callable[[str], Hashable] | Sequence[Hashable]"
"""What keeps samples together in folds: a column of the index, a stored field, a function of the key, or one value per sample."""


class Loaders(ABC):
    """The loaders of a dataset, by split, of a fold, or of a mix."""

    @abstractmethod
    def subset(self, split: str = "train") -> Subset:
        """The samples of a split."""

    @with_options
    def loader(self, split: str = "train", batch_size: int = 32, **options: Any) -> TensorFlowLoader:
        """A `tf.data.Dataset` of batches of this split. Imports TensorFlow.

            train = data.loader("train", batch_size=32, seed=0, inputs="image", targets="label")
            model.fit(train, epochs=10, shuffle=False)

        Args:
            split: The split's name.
            batch_size: Samples per step, of all hosts together.
            **options: The other fields of `tfprep.load.LoaderOptions`.

        Returns:
            The loader, with images [B, H, W, C] in their stored dtype.

        Raises:
            LoaderError: Options that exclude each other, or that this dataset cannot meet.
            DatasetError: There is no such split.
        """
        require_package("tensorflow", "loader()", "numpy_loader() works without it")
        from tfprep.load.tensorflow_loader import TensorFlowLoader

        return TensorFlowLoader(self._pipeline("loader()", split, batch_size, options))

    @with_options
    def numpy_loader(self, split: str = "train", batch_size: int = 32, **options: Any) -> Loader:
        """The same batches as NumPy arrays: for scikit-learn or a custom training loop. Imports no framework.

        Args:
            split, batch_size: As in `loader`.
            **options: As in `loader`.

        Returns:
            An iterable of batches, each pass the next epoch.

        Raises:
            LoaderError: As in `loader`.
        """
        return Loader(self._pipeline("numpy_loader()", split, batch_size, options))

    @with_options
    def torch_loader(self, split: str = "train", batch_size: int = 32, **options: Any) -> TorchLoader:
        """The same batches as PyTorch tensors, on any number of ranks. Imports PyTorch.

        Args:
            split: As in `loader`.
            batch_size: Samples per step, of all ranks together.
            **options: As in `loader`. Without `hosts`, each process of `torch.distributed` reads its own part of every batch.

        Returns:
            An `IterableDataset` of batches, for `DataLoader(..., batch_size=None)` or a plain `for`.

        Raises:
            LoaderError: As in `loader`.
            MissingDependencyError: PyTorch is not installed.
        """
        require_package("torch", "torch_loader()", "numpy_loader() works without it")
        from tfprep.load.torch_loader import TorchLoader, torch_hosts

        return TorchLoader(self._pipeline("torch_loader()", split, batch_size, options, torch_hosts))

    @with_options
    def keras_loader(
        self, split: str = "train", batch_size: int = 32, **options: Any
    ) -> KerasLoader | TensorFlowLoader:
        """Batches for `fit`, `evaluate` and `predict` of Keras on JAX or PyTorch, without TensorFlow.

            train = data.keras_loader("train", batch_size=32, seed=0, inputs="image", targets="label")
            model.fit(train, epochs=10, shuffle=False)

        Args:
            split: The split's name.
            batch_size: Samples per step, of all processes together.
            **options: The other fields of `tfprep.load.LoaderOptions`. Without `hosts`, each process of `jax.distributed` or
                `torch.distributed` reads its own part of every batch.

        Returns:
            A `keras.utils.PyDataset`, or `loader(...)` where Keras runs on TensorFlow. A plain `for` yields NumPy arrays.

        Raises:
            LoaderError: Options that exclude each other, or elements that the backend has no arrays for.
            MissingDependencyError: Keras is not installed.
        """
        require_package("keras", "keras_loader()", "numpy_loader() works without it")
        import keras

        if keras.backend.backend() == "tensorflow":
            return self.loader(split, batch_size, **options)
        from tfprep.load.keras_loader import KerasLoader, keras_hosts

        return KerasLoader(self._pipeline("keras_loader()", split, batch_size, options, keras_hosts))

    @with_options
    def jax_loader(
        self, split: str = "train", batch_size: int = 32, *, sharding: Any = None, ahead: int = 2, **options: Any
    ) -> JaxLoader:
        """Batches as JAX arrays on the devices, for a training loop in JAX. The next ones are transferred during a step.

            for images, labels in data.jax_loader("train", batch_size=64, inputs="image", targets="label"):
                state = train_step(state, images, labels)

        Args:
            split: The split's name.
            batch_size: Samples per step, of all processes together.
            sharding: A `jax.sharding.Sharding` by which each array is divided among the devices of all processes; None puts it on
                the default device.
            ahead: Batches that are on the devices, or on the way there, beyond the one in use; each takes device memory.
            **options: The other fields of `tfprep.load.LoaderOptions`. Without `hosts`, each process of `jax.distributed` reads
                its own part of every batch.

        Returns:
            The loader. Text stays in NumPy arrays.

        Raises:
            LoaderError: Options that exclude each other, or a sharding that cannot divide the batches.
            MissingDependencyError: JAX is not installed.
        """
        require_package("jax", "jax_loader()", "numpy_loader() works without it")
        from tfprep.load.jax_loader import JaxLoader, jax_hosts

        return JaxLoader(self._pipeline("jax_loader()", split, batch_size, options, jax_hosts), sharding, ahead)

    def random_access(
        self,
        split: str = "train",
        *,
        fields: Sequence[str] | None = None,
        variant: int | Literal["all"] = 0,
        on_bad: OnBad = "raise",
        verify: Verify = "first_epoch",
    ) -> RandomAccess:
        """The samples of a split by number: a map-style dataset for PyTorch, and a data source for Grain. Imports neither.

            photos = data.random_access("train", fields=["image", "label"])
            photos[7]["image"]                                                       # uint8 [H, W, C]
            grain.MapDataset.source(photos).shuffle(seed=0).batch(32)
            torch.utils.data.DataLoader(photos, batch_size=32, shuffle=True, num_workers=8)

        Args:
            split: The split's name.
            fields: The fields of a sample, as for `loader`; "key" and "variant" may be among them.
            variant: The stored variant, or "all": then sample i of variant v has the number v N + i, for N samples.
            on_bad, verify: As for `loader`.

        Returns:
            A sequence of dicts of NumPy arrays by field.

        Raises:
            LoaderError: There is no such field or variant.
            DatasetError: There is no such split, or a shard is missing.
        """
        from tfprep.load.random_access import RandomAccess

        variant = variant if str(variant) == "all" else whole_number("variant, if it is not 'all',", variant)
        options = LoaderOptions(
            batch_size=1, training=True, order="sequential", remainder="keep", fields=fields, variants=variant,
            on_bad=on_bad, verify=verify, cache=False, workers="threads",
        )  # fmt: skip
        sources = [replace(source, share=None) for source in self.subset(split).sources]  # as if it were no mix
        return RandomAccess(sources, options)

    def batch_sampler(self, split: str = "train", batch_size: int = 32, **options: Any) -> BatchSampler:
        """The order of `loader` as a batch sampler for PyTorch: numbers in `random_access(split, variant="all")`.

            batches = data.batch_sampler("train", 32, seed=0)
            DataLoader(data.random_access("train", variant="all"), batch_sampler=batches, num_workers=8)

        Args:
            split: The split's name.
            batch_size: Samples per step, of all hosts together.
            **options: Those of `loader` that decide the order: training, seed, order, variants, remainder,
                start_step, hosts, where, balance, weights. With variants=0 the numbers are also those of `random_access(split)`.

        Returns:
            The sampler, with `state_dict` and `load_state_dict`.

        Raises:
            LoaderError: Options that exclude each other, or that do not decide the order.
            DatasetError: There is no such split.
        """
        from tfprep.load.random_access import BatchSampler

        checked = loader_options("batch_sampler()", batch_size, options, deciding("order", "part"))
        return BatchSampler(self.subset(split).sources, checked)

    def _pipeline(
        self, call: str, split: str, batch_size: int, options: Mapping[str, Any], hosts: Callable[[], Any] | None = None
    ) -> Pipeline:
        """`hosts` returns this process's part of every batch, where the options do not say it."""
        if hosts is not None and options.get("hosts") is None:
            options = {**options, "hosts": hosts()}
        return Pipeline(self.subset(split).sources, loader_options(call, batch_size, options))


@dataclass(frozen=True, eq=False)
class Subset(Loaders):
    """The samples of a split, of a fold of one, or of a mix: `train.loader(batch_size=32)`. It has one split only."""

    sources: tuple[SplitRows, ...]

    def __repr__(self) -> str:
        return f"<Subset of {', '.join(source.name for source in self.sources)}: {len(self):,} samples>"

    def subset(self, split: str = "train") -> Subset:
        """These samples."""
        if split not in ("train", *(source.split for source in self.sources)):
            raise LoaderError(f"a fold has no splits to choose from, not {split!r}; write batch_size=32")
        return self

    def __len__(self) -> int:
        """The number of samples; the variants of a sample count as one."""
        return sum(source.samples if source.rows is None else len(source.rows) for source in self.sources)


@dataclass(frozen=True, eq=False)
class Data(Loaders, Dataset):
    """An opened dataset. Only its metadata is read until a loader needs more. Made by `tfprep.open`."""

    __hash__ = object.__hash__  # by identity: datasets are the keys of a mix
    __eq__ = object.__eq__
    __repr__ = Dataset.__repr__

    def __getitem__(self, split: str) -> Subset:
        """All samples of a split: `len(data["train"])`, `data["train"].loader(...)`."""
        return self.subset(split)

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the splits."""
        return iter(self.splits)

    def show(self, split: str = "train", *, samples: int = 8, variants: int | None = None) -> Image.Image:
        """Draw samples with their variants, masks and maps, as `tfprep show` does; a notebook shows the picture.

        Args:
            split: The split's name.
            samples: The number of samples, each a row.
            variants: The number of variants of each sample; None draws all.

        Returns:
            An RGB image of Pillow.

        Raises:
            DatasetError: There is no such split, it is empty, or nothing in it can be drawn.
        """
        from tfprep.inspect.sheet import contact_sheet

        return contact_sheet(self, split, samples=samples, variants=variants)

    def _repr_html_(self) -> str:
        """Return the splits, the fields and six pictures, for notebooks."""
        from tfprep.inspect.report import summary_html

        return summary_html(self)

    def subset(self, split: str = "train") -> Subset:
        """All samples of a split."""
        self.split(split)
        return Subset((SplitRows(self, split),))

    def folds(
        self,
        count: int,
        *,
        split: str = "train",
        stratify: str | None = None,
        group: Group | None = None,
        seed: int = 0,
    ) -> list[tuple[Subset, Subset]]:
        """Folds for cross-validation: every sample is in the validation part of one fold.

        All variants of a sample are on the same side, and so are all samples of a group.

        Args:
            count: The number of folds, from 2.
            split: The split that is divided.
            stratify: A column of the index or a stored field, such as "label", whose values are spread evenly.
            group: What keeps samples together: a column of the index or a stored field, a function of the key, or one value
                per sample.
            seed: The folds depend on the samples and this seed only.

        Returns:
            (train, validation) for each fold.

        Raises:
            LoaderError: There are fewer groups than folds, or no such column.
        """
        seed = whole_number("seed", seed)
        keys = self.index(split, 0, ["key"]).column("key").to_pylist()
        classes = None if stratify is None else self._values(split, column_name("stratify", stratify))
        groups: Sequence[Hashable] = keys
        if callable(group):
            groups = [group(key) for key in keys]
        elif group is not None:
            groups = self._values(split, group) if isinstance(group, str) else list(group)
            if len(groups) != len(keys):
                raise LoaderError(f"group= has {len(groups)} values for {len(keys)} samples of {split!r}")
        if missing := sum(value is None or value != value for value in groups):  # noqa: PLR0124 # NaN
            raise LoaderError(f"{missing} samples have no group and would be one; give a list with their keys instead")
        fold = fold_of(groups, classes, count, seed)

        def part(chosen: Any, *, training: bool) -> Subset:
            rows = np.flatnonzero(chosen).astype(np.int64)
            return Subset((SplitRows(self, split, rows, training=training),))

        return [(part(fold != at, training=True), part(fold == at, training=False)) for at in range(count)]

    def tf_dataset(
        self, split: str = "train", batch_size: int = 32, *, shuffle_buffer: ShuffleBuffer = "auto", **options: Any
    ) -> tf.data.Dataset:
        """A plain `tf.data` pipeline of public ops, for the tf.data service and for what must be serialized. Imports TensorFlow.

            train = data.tf_dataset("train", 32, inputs="image", targets="label")
            train = train.apply(tf.data.experimental.service.distribute("parallel_epochs", "grpc://host:5000"))

        Each iteration reads every sample once, in training in another order: that of a shuffle buffer over interleaved shards,
        which is neither exact nor resumed at a step. `loader` is faster, and has the exact order.

        Args:
            split: The split's name.
            batch_size: Samples per batch.
            shuffle_buffer: Records that the buffer holds; "auto" for a tenth of the samples, at least 1,000 and
                at most what half of `memory_budget` holds; None for no buffer.
            **options: As for `loader`: training, seed, fields, inputs, targets, sample_weight, remainder, memory_budget, and
                variants: "random" (the default in training: one for each shard, drawn again in each iteration), "all", or a
                number; 0 by default in evaluation.

        Returns:
            A `tf.data.Dataset` with the elements of `loader`. It has no length.

        Raises:
            LoaderError: Options that exclude each other, or a URL that TensorFlow does not read.
            DatasetError: There is no such split, or a shard is missing.
        """
        require_package("tensorflow", "tf_dataset()", "numpy_loader() works without it")
        from tfprep.load.tf_dataset import TAKEN, plain_dataset

        sources = self.subset(split).sources
        return plain_dataset(sources[0], loader_options("tf_dataset()", batch_size, options, TAKEN), shuffle_buffer)

    def normalization(self, inputs: str | Sequence[str] = "image") -> Any:
        """A `keras.layers.Normalization` for these fields. Imports Keras.

        As a model's first layer it takes uint8, a quarter of the bytes of float32 on the way to the device. Images are
        normalized by the training split's mean and standard deviation of each channel. Other fields are scaled to [0, 1] by
        their type's range if they are whole numbers, and left as they are if they are floats.

        Args:
            inputs: A field's name, or several whose channels are stacked.

        Returns:
            The layer, for arrays [..., C].

        Raises:
            LoaderError: There is no such field, or none of them is an image.
        """
        require_package("keras", "normalization()")
        import keras

        names, statistics = names_of(inputs), self.manifest.statistics
        mean: list[float] = []
        std: list[float] = []
        for name in names:
            if name not in self.fields or self.fields[name].kind not in RASTER_KINDS:
                rasters = [field for field, spec in self.fields.items() if spec.kind in RASTER_KINDS]
                raise LoaderError(f"there is no image, mask or map {name!r}; there are {', '.join(rasters)}")
            if name in statistics:
                mean += statistics[name].mean
                std += [value or 1.0 for value in statistics[name].std]
            else:
                channels, dtype = channels_of(self.fields[name]), np.dtype(self.fields[name].dtype)
                mean += [0.0] * channels
                std += [float(np.iinfo(dtype).max) if dtype.kind in "iu" else 1.0] * channels
        if statistics.keys().isdisjoint(names):
            available = ", ".join(statistics) or "no field"
            rule = f"the manifest has statistics of {available}, not of {', '.join(names)}"
            raise LoaderError(f"{rule}: only images have them")
        layer = keras.layers.Normalization(mean=mean, variance=[value**2 for value in std])
        layer.build((len(mean),))  # a Sequential without an Input would build it inside of a graph that ends
        return layer

    def _values(self, split: str, name: str) -> list[Any]:
        """The values of a column of the index, or of a stored number or text: one for each sample."""
        index, label = self.index(split, 0, [name]), SplitRows(self, split).label
        is_other = name == "label" and label not in (None, name) and name in self.fields
        if name in index.column_names and not is_other:
            return [tuple(value) if isinstance(value, list) else value for value in index.column(name).to_pylist()]
        if name not in self.fields or not isinstance(self.codecs[name], Scalar | Text) or self.fields[name].shape:
            raise LoaderError(f"{name!r} is neither a column of the index nor a stored number or text, one per sample")
        loader = self.numpy_loader(split, 256, training=False, fields=[name], variants=0, cache=False)
        return [value for batch in loader for value in np.asarray(batch[name]).tolist()]


@dataclass(frozen=True, eq=False)
class Mix(Loaders):
    """Several datasets as one, each with its share of every epoch. Made by `tfprep.mix`."""

    shares: Mapping[Data | Subset, float]

    def subset(self, split: str = "train") -> Subset:
        sources = []
        for data, share in self.shares.items():
            part = data.subset(split)
            if len(part.sources) > 1:
                raise LoaderError("a mix of a mix: name all its datasets in one")
            sources.append(replace(part.sources[0], share=float(share)))
        return Subset(tuple(sources))


def mix(shares: Mapping[Data | Subset, float]) -> Mix:
    """Several datasets, or folds, as one: `mix({a: 0.7, b: 0.3})` takes 70 % of every epoch's samples from a, 30 % from b.

    An epoch is as long as all of them together, and the samples of one dataset come equally often. Only fields that all
    datasets have, of the same kind, shape, dtype and codec, are loaded.

    Args:
        shares: The share of each dataset; they need not add up to 1.

    Returns:
        The mix, which has the loaders of a dataset.

    Raises:
        LoaderError: It is not such a dict. Loaders also raise it where a class number means different classes.
    """
    if not isinstance(shares, Mapping) or not shares or not all(isinstance(data, Loaders) for data in shares):
        rule = "a mix is a dict of opened datasets or folds and their shares, mix({a: 0.7, b: 0.3})"
        raise LoaderError(f"{rule}, not {shares!r:.200}")
    if not all(is_number(share) and 0 <= share < inf for share in shares.values()) or not any(shares.values()):
        raise LoaderError(
            f"the shares of a mix are numbers from 0 on, not {[*shares.values()]}; one at least is above 0"
        )
    return Mix(dict(shares))


def open(path: PathOrUrl, version: int | None = None) -> Data:
    """Open the dataset in this folder, or at this URL (`gs://bucket/photos`, `s3://...`: `pip install 'tfprep[s3]'`).

    Args:
        path: The folder or URL of a dataset, or of one of its versions (`out/photos/v0003`).
        version: The number of the version; None for the current one.

    Returns:
        The version, which stays as it is whatever builds do meanwhile. `data.path` is its folder.

    Raises:
        DatasetError: There is none that this tfprep reads.
    """
    folder = folder_at(path)
    if not is_remote(folder):
        folder = folder.absolute()  # files are opened later, and the current folder may be another one then
    return Data(*read_dataset(folder, version))

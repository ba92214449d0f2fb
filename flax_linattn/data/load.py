"""Loading by file name."""

from pathlib import Path

from flax_linattn.data.arff import load_arff
from flax_linattn.data.dataset import TimeSeriesDataset
from flax_linattn.data.ts import load_ts

_LOADERS = {".ts": load_ts, ".arff": load_arff}


def load_dataset(path: str | Path) -> TimeSeriesDataset:
    r"""Loads a ``.ts`` or ``.arff`` file, also with ``.gz`` or ``.xz`` after that.

    Args:
        path: The file; its name says the format.

    Raises:
        ValueError: The name ends otherwise.
        FileNotFoundError: There is no such file.
        DataFormatError: The file breaks its format; see ``load_ts`` and ``load_arff``.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "toy.ts")
        ...     _ = path.write_text("@classLabel true a b\n@data\n1,2:a\n")
        ...     load_dataset(path).classes
        ('a', 'b')
    """
    name = Path(path).name.removesuffix(".gz").removesuffix(".xz")
    loader = _LOADERS.get(Path(name).suffix.lower())
    if loader is None:
        raise ValueError(
            f"expected a file name ending in .ts or .arff (then .gz or .xz), got "
            f"{Path(path).name!r}; rename the file, or call load_ts or load_arff"
        )
    return loader(path)

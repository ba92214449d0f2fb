"""Data: official file formats to arrays, embedded sets, transforms, splits and batches."""

from flax_linattn.data.arff import load_arff
from flax_linattn.data.batching import Batches, BucketBatches
from flax_linattn.data.dataset import TimeSeriesDataset
from flax_linattn.data.embedded import japanese_vowels
from flax_linattn.data.files import DataFormatError
from flax_linattn.data.load import load_dataset
from flax_linattn.data.packing import Packed, pack
from flax_linattn.data.sources import GrainBatches, IteratorBatches
from flax_linattn.data.split import stratified_split
from flax_linattn.data.transforms import Standardizer, interpolate_missing, pad
from flax_linattn.data.ts import load_ts

__all__ = [
    "Batches",
    "BucketBatches",
    "DataFormatError",
    "GrainBatches",
    "IteratorBatches",
    "Packed",
    "Standardizer",
    "TimeSeriesDataset",
    "interpolate_missing",
    "japanese_vowels",
    "load_arff",
    "load_dataset",
    "load_ts",
    "pack",
    "pad",
    "stratified_split",
]

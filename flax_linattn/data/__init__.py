"""Data: official file formats to arrays, embedded and drawn sets, transforms, splits, batches."""

from flax_linattn.data.arff import load_arff
from flax_linattn.data.batching import Batches, BucketBatches, RaggedBatches
from flax_linattn.data.catalog import CATALOG, Entry, Source
from flax_linattn.data.dataset import TimeSeriesDataset
from flax_linattn.data.dialect import Dialect
from flax_linattn.data.embedded import etth1, japanese_vowels, pendulum
from flax_linattn.data.fetch import fetch
from flax_linattn.data.files import DataFormatError
from flax_linattn.data.frames import from_frame, to_frame
from flax_linattn.data.generated import GeneratedBatches
from flax_linattn.data.labels import stratified_split
from flax_linattn.data.load import load_dataset, load_long, load_series
from flax_linattn.data.packing import Packed, pack
from flax_linattn.data.resampling import TimesPolicy, resample
from flax_linattn.data.series import TimeSeries
from flax_linattn.data.sets.nt import NextSymbol, Rule, count_cycles, parse_rules
from flax_linattn.data.sets.pathfinder import Pathfinder
from flax_linattn.data.sets.recall import AssociativeRecall, Copying, Induction, Parity
from flax_linattn.data.sources import GrainBatches, IteratorBatches
from flax_linattn.data.spoken_arabic_digits import load_spoken_arabic_digits
from flax_linattn.data.time_features import calendar_circles, calendar_features
from flax_linattn.data.transforms import Standardizer, interpolate_missing, pad
from flax_linattn.data.ts import load_ts
from flax_linattn.data.tsf import load_tsf
from flax_linattn.data.windows import Split, Windows, chronological_split

__all__ = [
    "CATALOG",
    "AssociativeRecall",
    "Batches",
    "BucketBatches",
    "Copying",
    "DataFormatError",
    "Dialect",
    "Entry",
    "GeneratedBatches",
    "GrainBatches",
    "Induction",
    "IteratorBatches",
    "NextSymbol",
    "Packed",
    "Parity",
    "Pathfinder",
    "RaggedBatches",
    "Rule",
    "Source",
    "Split",
    "Standardizer",
    "TimeSeries",
    "TimeSeriesDataset",
    "TimesPolicy",
    "Windows",
    "calendar_circles",
    "calendar_features",
    "chronological_split",
    "count_cycles",
    "etth1",
    "fetch",
    "from_frame",
    "interpolate_missing",
    "japanese_vowels",
    "load_arff",
    "load_dataset",
    "load_long",
    "load_series",
    "load_spoken_arabic_digits",
    "load_ts",
    "load_tsf",
    "pack",
    "pad",
    "parse_rules",
    "pendulum",
    "resample",
    "stratified_split",
    "to_frame",
]

from flax_linattn.data.batches.batches import Batches, BucketBatches, RaggedBatches
from flax_linattn.data.batches.generated import GeneratedBatches
from flax_linattn.data.batches.packing import Packed, pack
from flax_linattn.data.batches.sources import GrainBatches, IteratorBatches
from flax_linattn.data.errors import DataFormatError
from flax_linattn.data.generators.nt import NextSymbol, Rule, count_cycles, parse_rules
from flax_linattn.data.generators.pathfinder import Pathfinder
from flax_linattn.data.generators.recall import AssociativeRecall, Copying, Induction, Parity
from flax_linattn.data.labels import stratified_split
from flax_linattn.data.series.arff import load_arff
from flax_linattn.data.series.dataset import TimeSeriesDataset
from flax_linattn.data.series.frames import from_frame, to_frame
from flax_linattn.data.series.load import load_dataset, load_long, load_series
from flax_linattn.data.series.resampling import resample
from flax_linattn.data.series.series import TimeSeries
from flax_linattn.data.series.spoken_arabic_digits import load_spoken_arabic_digits
from flax_linattn.data.series.time_features import calendar_circles, calendar_features
from flax_linattn.data.series.transforms import Standardizer, interpolate_missing, pad
from flax_linattn.data.series.ts import load_ts
from flax_linattn.data.series.tsf import load_tsf
from flax_linattn.data.series.windows import Split, Windows, chronological_split
from flax_linattn.data.sets.catalog import CATALOG, Entry, Source
from flax_linattn.data.sets.embedded import etth1, japanese_vowels, pendulum
from flax_linattn.data.sets.fetch import fetch
from flax_linattn.data.tables.dialect import Dialect, TimesPolicy

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

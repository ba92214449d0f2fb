"""The public data sets that there are readers for, and where their official files are."""

from __future__ import annotations

from typing import NamedTuple

SEQUENCES = "sequences"
"""A kind of data set: sequences with classes, in a file to train and one to test."""
SERIES = "series"
"""A kind of data set: one series, a row a time."""
TEXTS = "texts"
"""A kind of data set: texts with classes, to train and to test."""
IMAGES = "images"
"""A kind of data set: images with classes, to train and to test."""


class Source(NamedTuple):
    """A file of a data set.

    Attributes:
        name: Its name on disk.
        url: The official file, or the zip archive that holds it.
        sha256: Of the file; None where it is not known here.
    """

    name: str
    url: str
    sha256: str | None = None


class Entry(NamedTuple):
    """A data set.

    Attributes:
        kind: What its files hold: ``SEQUENCES``, ``SERIES``, ``TEXTS`` or ``IMAGES``.
        about: What it holds.
        licence: As its source states it.
        page: Where to read on.
        sources: Its files.
        embedded: Whether it comes with the package.
        split: How its rows are customarily split in training, validation and test.
    """

    kind: str
    about: str
    licence: str
    page: str
    sources: tuple[Source, ...]
    embedded: bool = False
    split: str = ""


_UEA_PAGE = "https://www.timeseriesclassification.com"


def _uea(name: str, about: str, *sha256: str, licence: str = "not stated") -> Entry:
    url = f"{_UEA_PAGE}/aeon-toolkit/{name}.zip"
    names = [f"{name}_TRAIN.ts", f"{name}_TEST.ts"]
    sums = sha256 or (None, None)
    sources = tuple(Source(n, url, known) for n, known in zip(names, sums, strict=True))
    page = f"{_UEA_PAGE}/description.php?Dataset={name}"
    return Entry(SEQUENCES, about, licence, page, sources, embedded=name == "JapaneseVowels")


def _ett(name: str, about: str, sha256: str | None) -> Entry:
    page = "https://github.com/zhouhaoyi/ETDataset"
    url = f"https://raw.githubusercontent.com/zhouhaoyi/ETDataset/main/ETT-small/{name}.csv"
    sources = (Source(f"{name}.csv", url, sha256),)
    months = (12, 4, 4) if name.startswith("ETTh") else (48, 16, 16)
    split = "/".join(str(30 * 24 * count) for count in months)
    return Entry(
        SERIES,
        about,
        "CC BY-ND 4.0",
        page,
        sources,
        embedded=name == "ETTh1",
        split=split,
    )


def _library(path: str, about: str) -> Entry:
    page = "https://huggingface.co/datasets/thuml/Time-Series-Library"
    source = Source(path.rpartition("/")[2], f"{page}/resolve/main/{path}")
    return Entry(SERIES, about, "CC BY 4.0", page, (source,), split=_SHARES)


def _lai(path: str, about: str, sha256: str | None = None) -> Entry:
    page = "https://github.com/laiguokun/multivariate-time-series-data"
    raw = page.replace("github.com", "raw.githubusercontent.com")
    name = path.rpartition("/")[2]
    sources = (Source(f"{name}.txt.gz", f"{raw}/master/{path}.txt.gz", sha256),)
    return Entry(SERIES, about, "not stated", page, sources, split=_SHARES)


def _idx(about: str, page: str, folder: str, *sha256: str, licence: str) -> Entry:
    names = [
        f"{part}-{what}-ubyte.gz"
        for part in ("train", "t10k")
        for what in ("images-idx3", "labels-idx1")
    ]
    sums = sha256 or (None,) * len(names)
    sources = tuple(Source(n, f"{folder}/{n}", known) for n, known in zip(names, sums, strict=True))
    return Entry(IMAGES, about, licence, page, sources)


_SHARES = "0.7/0.1/0.2"
_DIGITS = "https://archive.ics.uci.edu/static/public/195/spoken+arabic+digit.zip"

CATALOG: dict[str, Entry] = {
    "BasicMotions": _uea(
        "BasicMotions",
        "4 motions of a smart watch, 6 channels of 100 steps, 40 + 40",
        "8dc43cc6306cb679c888c01e26f91772ac4441a916da43bac8b79734a538b9d6",
        "79213102bc6fca1a398ad98ce1185dff0208fa3d1465e687f48288946b0ff8dc",
    ),
    "EthanolConcentration": _uea(
        "EthanolConcentration", "4 concentrations, 3 channels of 1,751 steps, 261 + 263"
    ),
    "FaceDetection": _uea("FaceDetection", "2 classes, 144 channels of 62 steps, 5,890 + 3,524"),
    "Handwriting": _uea("Handwriting", "26 letters, 3 channels of 152 steps, 150 + 850"),
    "Heartbeat": _uea("Heartbeat", "2 classes, 61 channels of 405 steps, 204 + 205"),
    "JapaneseVowels": _uea(
        "JapaneseVowels",
        "9 speakers, 12 channels of 7 to 29 steps, 270 + 370",
        "68a430eabd919cc77f40b1f5f3bc0dcafacc1486bca9260785aeb7d262cc78cd",
        "b3d41d6a0ca3bcad3afb9ca7d4365382aa51341e2e58bae2a574babdda5b9462",
        licence="CC BY 4.0",
    ),
    "PEMS-SF": _uea("PEMS-SF", "7 weekdays, 963 channels of 144 steps, 267 + 173"),
    "SelfRegulationSCP1": _uea(
        "SelfRegulationSCP1", "2 classes, 6 channels of 896 steps, 268 + 293"
    ),
    "SelfRegulationSCP2": _uea(
        "SelfRegulationSCP2", "2 classes, 7 channels of 1,152 steps, 200 + 180"
    ),
    "SpokenArabicDigits": Entry(
        SEQUENCES,
        "10 digits, 13 channels of 4 to 93 steps, 6,600 + 2,200",
        "CC BY 4.0",
        "https://archive.ics.uci.edu/dataset/195/spoken+arabic+digit",
        (
            Source(
                "Train_Arabic_Digit.txt",
                _DIGITS,
                "cecd3ee9951658e5391f0342e9b6467ba7c0e7ecff5c9012b9c1ed9f81b97bc6",
            ),
            Source(
                "Test_Arabic_Digit.txt",
                _DIGITS,
                "de40eac66ce18fca8924bad592002ee7ef646fc84d48b065ce21ac9f88946922",
            ),
        ),
    ),
    "UWaveGestureLibrary": _uea(
        "UWaveGestureLibrary",
        "8 gestures, 3 channels of 315 steps, 120 + 320",
        "e1d656037ceb880fe3d4ef7f83f2ee38459897ebaaada93527a17a86823bc92d",
        "734b30171297cc4c209485020466d83dabd2b7ecf76edc10957354f2557d0964",
    ),
    "ETTh1": _ett(
        "ETTh1",
        "a transformer, 17,420 hours, 7 channels",
        "f18de3ad269cef59bb07b5438d79bb3042d3be49bdeecf01c1cd6d29695ee066",
    ),
    "ETTh2": _ett(
        "ETTh2",
        "another transformer, 17,420 hours, 7 channels",
        "a3dc2c597b9218c7ce1cd55eb77b283fd459a1d09d753063f944967dd6b9218b",
    ),
    "ETTm1": _ett("ETTm1", "that of ETTh1, 69,680 quarters of an hour, 7 channels", None),
    "ETTm2": _ett(
        "ETTm2",
        "that of ETTh2, 69,680 quarters of an hour, 7 channels",
        "db973ca252c6410a30d0469b13d696cf919648d0f3fd588c60f03fdbdbadd1fd",
    ),
    "electricity": _lai("electricity/electricity", "321 clients, 26,304 hours"),
    "exchange_rate": _lai(
        "exchange_rate/exchange_rate",
        "8 currencies, 7,588 days",
        "6a4fbb561dcdee43f071a83badbeec9223a335552278348656738b556f1c2e9d",
    ),
    "solar_energy": _lai("solar-energy/solar_AL", "137 plants, 52,560 times ten minutes"),
    "Traffic": _library("traffic/traffic.csv", "862 sensors, 17,544 hours"),
    "traffic_lai": _lai("traffic/traffic", "that of Traffic, 17,544 hours, without times"),
    "Weather": _library(
        "weather/weather.csv", "21 measures of a station, 52,696 times ten minutes"
    ),
    "IMDB": Entry(
        TEXTS,
        "reviews of films, good and bad, 25,000 + 25,000",
        "to be cited (Maas et al., 2011)",
        "https://ai.stanford.edu/~amaas/data/sentiment/",
        (
            Source(
                "aclImdb_v1.tar.gz",
                "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
            ),
        ),
    ),
    "CIFAR-10": Entry(
        IMAGES,
        "10 kinds of things, 32 x 32 pixels in colour, 50,000 + 10,000",
        "not stated",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        (
            Source(
                "cifar-10-binary.tar.gz",
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            ),
        ),
    ),
    "MNIST": _idx(
        "10 digits, 28 x 28 grey pixels, 60,000 + 10,000",
        "http://yann.lecun.com/exdb/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist",
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        licence="not stated",
    ),
    "Fashion-MNIST": _idx(
        "10 kinds of clothes, 28 x 28 grey pixels, 60,000 + 10,000",
        "https://github.com/zalandoresearch/fashion-mnist",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        licence="MIT",
    ),
    "Tiny-ImageNet": Entry(
        IMAGES,
        "200 kinds of things, 64 x 64 pixels in colour, 100,000 + 10,000",
        "non-commercial research",
        "https://www.image-net.org",
        (Source("tiny-imagenet-200.zip", "http://cs231n.stanford.edu/tiny-imagenet-200.zip"),),
    ),
}
"""Data sets by name."""


def customary_split(file: str) -> str:
    """How the rows of a series are customarily split, by the name of its file; "" if not known.

    What follows after the first dot of the name does not count.
    """
    return _SPLITS.get(file.partition(".")[0].lower(), "")


_SPLITS = {
    source.name.partition(".")[0].lower(): entry.split
    for entry in CATALOG.values()
    if entry.kind == SERIES
    for source in entry.sources
}

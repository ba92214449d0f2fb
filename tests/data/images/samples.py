"""Tiny data sets in the official formats, for tests of whatever reads them; models can learn them.

Images of class k have stripes k // 2 + 1 pixels wide, lying ones where k is even and standing ones
where it is odd, in one of three colors, with some noise; each image has them at a place of its
own. Texts of a class repeat its word among common ones.
"""

import gzip
import pickle
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

CIFAR10 = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
WORDS = ("bad", "good", "odd", "long", "dull", "warm")
COMMON = ("the", "film", "was", "and", "so", "is", "a", "plot", "of", "it")


def stripes(label: int, size: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """An image of a class, uint8 [size, size, 3]."""
    line = (np.arange(size) + rng.integers(size)) // (label // 2 + 1) % 2
    plane = np.tile(line, (size, 1))
    bright = (plane.T if label % 2 == 0 else plane)[..., None]
    color = 90 + 60 * np.array([label % 3 == 0, label % 3 == 1, label % 3 == 2])
    noise = rng.integers(-20, 21, (size, size, 3))
    return np.clip(bright * color + 40 + noise, 0, 255).astype(np.uint8)


def images(num_classes: int, per_class: int, size: int, seed: int = 0) -> tuple[NDArray, NDArray]:
    """Pixels uint8 [N, size, size, 3] and labels int32 [N], the classes in turn."""
    rng = np.random.default_rng(seed)
    labels = np.tile(np.arange(num_classes, dtype=np.int32), per_class)
    return np.stack([stripes(int(label), size, rng) for label in labels]), labels


def write_cifar10(
    folder: Path, per_class: int = 2, version: str = "binary", num_batches: int = 1
) -> Path:
    """CIFAR-10's binary or Python version with ``per_class`` images a class and file."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"data_batch_{number}" for number in range(1, num_batches + 1)]
    for seed, name in enumerate([*names, "test_batch"]):
        pixels, labels = images(10, per_class, 32, seed)
        planes = pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1)
        if version == "binary":
            records = np.concatenate([labels[:, None].astype(np.uint8), planes], axis=1)
            (folder / f"{name}.bin").write_bytes(records.tobytes())
            continue
        batch: dict[bytes, object] = {
            b"batch_label": b"a batch",
            b"labels": labels.tolist(),
            b"data": np.ascontiguousarray(planes),
            b"filenames": [f"{index}.png".encode() for index in range(len(labels))],
        }
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    if version == "binary":
        (folder / "batches.meta.txt").write_text("\n".join(CIFAR10) + "\n\n")
    else:
        meta: dict[bytes, object] = {b"num_cases_per_batch": per_class, b"num_vis": 3072}
        meta |= {b"label_names": [name.encode() for name in CIFAR10]}
        (folder / "batches.meta").write_bytes(pickle.dumps(meta, protocol=2))
    return folder


def write_idx(
    folder: Path, n: int, size: int = 28, num_classes: int = 10, zipped: bool = False
) -> Path:
    """MNIST's four files with ``n`` images to learn from and ``n`` to test on."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, part in enumerate(("train", "t10k")):
        pixels, labels = images(num_classes, -(-n // num_classes), size, seed)
        gray = pixels[:n, ..., seed].copy()
        files = {
            f"{part}-images-idx3-ubyte": struct.pack(">4I", 0x803, *gray.shape) + gray.tobytes(),
            f"{part}-labels-idx1-ubyte": struct.pack(">2I", 0x801, n)
            + labels[:n].astype(np.uint8).tobytes(),
        }
        for name, content in files.items():
            if zipped:
                name, content = f"{name}.gz", gzip.compress(content, mtime=0)
            (folder / name).write_bytes(content)
    return folder


def write_image_folder(
    folder: Path,
    classes: Sequence[str] = ("cat", "dog"),
    per_class: int = 2,
    size: int = 16,
    *,
    parts: Sequence[str] = ("train", "test"),
    suffix: str = "png",
) -> Path:
    """One folder a class, ``train/CLASS/0.png``, with ``test`` beside. Takes Pillow."""
    from PIL import Image

    for seed, part in enumerate(parts):
        pixels, labels = images(len(classes), per_class, size, seed)
        for index, (image, label) in enumerate(zip(pixels, labels, strict=True)):
            path = folder / part / classes[label] / f"{index:04}.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)
    return folder


def write_tiny_imagenet(
    folder: Path, classes: Sequence[str] = ("n01641577", "n02099601"), per_class: int = 2
) -> Path:
    """Tiny ImageNet's tree: labels of ``val`` in a file, none of ``test``."""
    from PIL import Image

    rows = []
    for seed, part in enumerate(("train", "val", "test")):
        pixels, labels = images(len(classes), per_class, 64, seed)
        for index, (image, label) in enumerate(zip(pixels, labels, strict=True)):
            name = f"{part}_{index}.JPEG"
            below = f"{classes[label]}/images" if part == "train" else "images"
            path = folder / part / below / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path, "JPEG")
            if part == "val":
                rows.append(f"{name}\t{classes[label]}\t0\t0\t63\t63\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(rows))
    (folder / "wnids.txt").write_text("\n".join(classes))
    return folder


def text(label: int, rng: np.random.Generator, words: int = 12) -> bytes:
    """A text of a class."""
    drawn = rng.choice(COMMON, words)
    drawn[rng.choice(words, max(1, words // 3), replace=False)] = WORDS[label]
    return " ".join(drawn.tolist()).encode()


def write_texts(
    folder: Path,
    classes: Sequence[str] = ("neg", "pos"),
    per_class: int = 3,
    words: int = 12,
    unsup: int = 0,
) -> Path:
    """aclImdb's tree, ``train/neg/0_1.txt`` and so on, with ``unsup`` texts without labels."""
    for seed, part in enumerate(("train", "test")):
        rng = np.random.default_rng(seed)
        for label, name in enumerate(classes):
            (folder / part / name).mkdir(parents=True, exist_ok=True)
            for index in range(per_class):
                content = text(label, rng, words + index)
                (folder / part / name / f"{index}_{label + 1}.txt").write_bytes(content)
    for index in range(unsup):
        path = folder / "train" / "unsup" / f"{index}_0.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"of no label")
    return folder

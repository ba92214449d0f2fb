"""Official files of images: what is read is what was written, from folders and archives."""

import builtins
import gzip
import pickle
import struct
import sys
import tarfile
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from flax_linattn.data.errors import DataFormatError
from flax_linattn.data.files import unpacking
from flax_linattn.data.files.file_tree import FileTree
from flax_linattn.data.images import decode, load_images
from tests.data.images import samples


def packed(folder, kind):
    """The folder as an archive, in another order, with a folder at its top."""
    path = folder.with_name(f"{folder.name}.{kind}")
    files = sorted((file for file in folder.rglob("*") if file.is_file()), reverse=True)
    names = [f"{folder.name}/{file.relative_to(folder)}" for file in files]
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for file, name in zip(files, names, strict=True):
                archive.write(file, name)
    else:
        with tarfile.open(path, f"w:{kind.removeprefix('tar').removeprefix('.')}") as archive:
            for file, name in zip(files, names, strict=True):
                archive.add(file, name)
    return path


def same(pair, other):
    for one, two in zip(pair, other, strict=True):
        assert one.classes == two.classes and one.notes == two.notes
        assert np.array_equal(one.labels, two.labels) and np.array_equal(one.pixels, two.pixels)


WRITERS = {
    "cifar10_binary": lambda folder: samples.write_cifar10(folder, num_batches=2),
    "cifar10_python": lambda folder: samples.write_cifar10(folder, 1, "python", 2),
    "idx": lambda folder: samples.write_idx(folder, 20),
    "idx_gz": lambda folder: samples.write_idx(folder, 20, zipped=True),
    "folders": samples.write_image_folder,
    "tiny_imagenet": samples.write_tiny_imagenet,
}


@pytest.mark.parametrize("name", WRITERS)
def test_an_archive_holds_what_its_folder_does(name, tmp_path):
    folder = WRITERS[name](tmp_path / name)
    whole = load_images(folder)
    same(whole, load_images(tmp_path))  # of which it is the only data set
    assert whole[0].name == name
    for kind in ("tar", "tar.gz", "tar.xz", "zip"):
        path = packed(folder, kind)
        same(whole, load_images(path))
        path.unlink()


@pytest.mark.parametrize("version", ["binary", "python"])
def test_cifar10(version, tmp_path):
    folder = samples.write_cifar10(tmp_path / "c", 2, version, num_batches=11)
    train, test = load_images(folder)
    parts = [samples.images(10, 2, 32, seed) for seed in range(12)]
    assert train.classes == test.classes == samples.CIFAR10
    assert np.array_equal(train.pixels, np.concatenate([pixels for pixels, _ in parts[:-1]]))
    assert np.array_equal(train.labels, np.concatenate([labels for _, labels in parts[:-1]]))
    assert np.array_equal(test.pixels, parts[-1][0]) and np.array_equal(test.labels, parts[-1][1])
    assert train.notes == ("220 images to train, where the official data set has 50,000",)
    assert test.notes == ("20 images to test, where the official data set has 10,000",)
    same((train, test), load_images(folder, size=32))
    with pytest.raises(DataFormatError, match="size must be None or 32"):
        load_images(folder, size=16)


@pytest.mark.parametrize("version", ["binary", "python"])
def test_cifar10_of_other_names(version, tmp_path):
    """Classes are sorted; without the file of names they are CIFAR-10's."""
    folder = samples.write_cifar10(tmp_path, 1, version)
    names = [*"jihgfedcba"]
    meta = folder / ("batches.meta.txt" if version == "binary" else "batches.meta")
    text = "\n".join(names).encode()
    meta.write_bytes(text if version == "binary" else pickle.dumps({"label_names": names}))
    train, _ = load_images(folder)
    assert train.classes == tuple("abcdefghij") and train.labels.tolist() == [*range(9, -1, -1)]
    meta.unlink()
    assert load_images(folder)[0].classes == samples.CIFAR10


def test_cifar10_of_other_picklers(tmp_path):
    folder = samples.write_cifar10(tmp_path, 1, "python")
    whole = load_images(folder)
    batch = pickle.loads((folder / "data_batch_1").read_bytes())
    batches = [
        {key.decode(): value for key, value in batch.items()},
        {**batch, b"data": np.asfortranarray(batch[b"data"])},
    ]
    for content in batches:
        for protocol in range(0, 5):
            (folder / "data_batch_1").write_bytes(pickle.dumps(content, protocol=protocol))
            same(whole, load_images(folder))


@pytest.mark.parametrize("zipped", [False, True])
def test_idx(zipped, tmp_path):
    folder = samples.write_idx(tmp_path / "MNIST" / "raw", 25, zipped=zipped)
    train, test = load_images(tmp_path)
    for seed, found in enumerate((train, test)):
        pixels, labels = samples.images(10, 3, 28, seed)
        assert np.array_equal(found.pixels[..., 0], pixels[:25, ..., seed])
        assert np.array_equal(found.labels, labels[:25])
        assert found.classes == tuple("0123456789") and found.image_shape == (28, 28, 1)
    (folder / f"t10k-labels-idx1-ubyte{'.gz' * zipped}").unlink()
    with pytest.raises(DataFormatError, match=r"expected t10k-labels-idx1-ubyte, or the same with"):
        load_images(tmp_path)


def test_image_folders_are_the_files_by_class_and_name(tmp_path):
    folder = samples.write_image_folder(tmp_path / "f", ("wolf", "cat", "dog"), 3, 8)
    (folder / "train" / "cat" / ".hidden.png").write_text("no image")
    (folder / "train" / "cat" / "Thumbs.db").write_text("no image")
    train, test = load_images(folder)
    assert train.classes == ("cat", "dog", "wolf")
    assert train.notes == ("files that are no images, left out: 1",)  # hidden ones do not count
    for part, found in (("train", train), ("test", test)):
        paths = sorted((folder / part).glob("*/0*.png"))
        expected = [np.asarray(Image.open(path)) for path in paths]
        assert np.array_equal(found.pixels, expected)
        assert [found.classes[label] for label in found.labels] == [p.parent.name for p in paths]


def test_tiny_imagenet_is_tested_on_its_validation_images(tmp_path):
    folder = samples.write_tiny_imagenet(tmp_path)
    train, test = load_images(folder)
    rows = (folder / "val" / "val_annotations.txt").read_text().splitlines()
    labels = {row.split("\t")[0]: row.split("\t")[1] for row in rows}
    expected = sorted(labels, key=lambda name: (labels[name], name))
    assert [test.classes[label] for label in test.labels] == [labels[name] for name in expected]
    for name, pixels in zip(expected, test.pixels, strict=True):
        assert np.array_equal(np.asarray(Image.open(folder / "val" / "images" / name)), pixels)
    assert (
        train.notes
        == test.notes
        == (
            "tested on the images of val, because the images of test have no labels",
            "files that are no images, left out: 2",
            "images are JPEG files",
        )
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ":1: expected a line for each image, got none"),
        ("val_0.JPEG\tn01641577\nval_0.JPEG\tn01641577\n", ":2: .* got 'val_0.JPEG' again"),
        ("val_0.JPEG\tn9\n", ":1: expected the name of an image, a tab and a class of .*got 'n9'"),
        ("val_0.JPEG n01641577\n", ":1: .*got the line 'val_0.JPEG n01641577'"),
        ("gone.JPEG\tn01641577\n", ":1: .*got no 'gone.JPEG' there"),
        ("../../train/n/1.JPEG\tn01641577\n", ":1: .*got no"),
    ],
)
def test_other_annotations_are_refused(text, message, tmp_path):
    folder = samples.write_tiny_imagenet(tmp_path)
    (folder / "val" / "val_annotations.txt").write_text(text)
    with pytest.raises(DataFormatError, match=f"val_annotations.txt{message}"):
        load_images(folder)


def save(folder, name, image):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)
    return path


def two(folder, **extra):
    """A data set of two classes, 8 x 8, and further images."""
    samples.write_image_folder(folder, size=8, per_class=1)
    for name, image in extra.items():
        save(folder, f"train/cat/{name}", image)
    return folder


def test_images_of_several_shapes_need_a_size(tmp_path):
    two(tmp_path, **{"z.png": Image.new("RGB", (9, 8))})
    message = "z.png: expected an image of 8 x 8, as .*0000.png, got one of 8 x 9; pass a size"
    with pytest.raises(DataFormatError, match=message) as caught:
        load_images(tmp_path)
    assert caught.value.options == ("size",)
    assert load_images(tmp_path, size=8)[0].image_shape == (8, 8, 3)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 12))
def test_a_size_scales_the_shorter_side_and_cuts_the_middle_out(height, width, size):
    rng = np.random.default_rng(height * 41 + width)
    pixels = rng.integers(0, 256, (height, width, 3)).astype(np.uint8)
    found = np.asarray(decode._cropped(Image, Image.fromarray(pixels), size))
    # torchvision's Resize, whose longer side is cut to an integer, and CenterCrop.
    tall, wide = (int(size * side / min(height, width)) for side in (height, width))
    image = Image.fromarray(pixels)
    if min(height, width) != size:
        image = image.resize((wide, tall), Image.Resampling.BICUBIC)
    top, left = round((tall - size) / 2), round((wide - size) / 2)
    assert np.array_equal(found, np.asarray(image)[top : top + size, left : left + size])


def test_files_of_other_kinds_become_color(tmp_path):
    base = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8) * 3)
    kinds = {
        "a.png": base,
        "b.png": base.convert("P"),
        "c.jpg": base.convert("CMYK"),
        "d.png": base.convert("RGBA"),
        "e.png": base.convert("LA"),
        "f.png": base.convert("1"),
        "g.tiff": base.convert("RGB"),
        "h.ppm": base.convert("RGB"),
        "i.pgm": base,
        "j.bmp": base.convert("RGB"),
        "k.webp": base.convert("RGB"),
    }
    train, _ = load_images(two(tmp_path, **kinds))
    gray = np.repeat(np.asarray(base)[..., None], 3, -1)
    for row in (1, 2, 4, 5, 7, 8, 9, 10):  # behind the one of the sample
        assert np.array_equal(train.pixels[row], gray), row
    assert train.notes == (
        "1 of 15 are JPEG files",
        "1 image was black and white in the files, and became red, green and blue",
        "1 image was CMYK in the files, and became red, green and blue",
        "2 images were gray in the files, and became red, green and blue",
        "1 image was gray with transparency in the files, and became red, green and blue",
        "1 image was of a palette in the files, and became red, green and blue",
        "1 image was with transparency in the files, and became red, green and blue",
    )


def test_photos_lie_as_viewers_show_them(tmp_path):
    """Whatever of the eight orientations the camera's metadata tell; damaged ones say nothing."""
    upright = np.zeros((8, 16, 3), np.uint8)
    upright[:4, :8], upright[:4, 8:] = 200, 100
    image = Image.fromarray(upright)
    turns = Image.Transpose
    stored = {
        1: image,
        2: image.transpose(turns.FLIP_LEFT_RIGHT),
        3: image.transpose(turns.ROTATE_180),
        4: image.transpose(turns.FLIP_TOP_BOTTOM),
        5: image.transpose(turns.TRANSPOSE),
        6: image.transpose(turns.ROTATE_90),
        7: image.transpose(turns.TRANSVERSE),
        8: image.transpose(turns.ROTATE_270),
        9: image,
    }
    names = [f"{orientation}.jpg" for orientation in stored]
    for (orientation, one), name in zip(stored.items(), names, strict=True):
        exif = Image.Exif()
        exif[0x0112] = orientation
        one.save(tmp_path / name, exif=exif, quality=100, subsampling=0)
    image.save(tmp_path / "damaged.jpg", exif=b"Exif\0\0no metadata", quality=100, subsampling=0)
    found, notes = decode.decode_images(FileTree(tmp_path), [*names, "damaged.jpg"], None)
    for pixels in found:
        assert np.abs(pixels.astype(int) - upright).max() < 40  # JPEG blurs edges
        assert np.abs(pixels[:4].astype(int) - upright[:4]).mean() < 4
    assert notes[1:] == ("images turned upright, as their EXIF metadata say: 7",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected a valid image file, got a damaged one, or another kind of file"),
        (b"GIF89a" + bytes(20), "expected a valid image file"),
        (b"some text", r"\(none of JPEG, PNG, BMP, PPM, TIFF, WEBP\)"),
        ("cut", "expected a valid image file"),
        ("deep", "expected a gray or color image .*.* Pillow's mode 'I;16'"),
        ("bomb", "exceeds limit"),
    ],
)
def test_damaged_images_are_named(content, message, tmp_path):
    two(tmp_path)
    path = save(tmp_path, "train/dog/bad.png", Image.new("RGB", (8, 8)))
    if content == "cut":
        content = path.read_bytes()[:-30]
    elif content == "deep":
        Image.fromarray(np.zeros((8, 8), np.uint16)).save(path)
        content = path.read_bytes()
    elif content == "bomb":
        content = b"P6 20000 20000 255\n"
    path.write_bytes(content)
    with pytest.raises(DataFormatError, match=message) as caught:
        load_images(tmp_path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_damaged_image_of_an_archive_is_named(tmp_path):
    folder = two(tmp_path / "a")
    (folder / "test" / "cat" / "0000.png").write_bytes(b"none")
    path = packed(folder, "tar.gz")
    with pytest.raises(DataFormatError) as caught:
        load_images(path)
    assert str(caught.value).startswith(f"{path}!a/test/cat/0000.png: expected a valid image file")


def test_images_beyond_memory_are_refused_with_advice(tmp_path, monkeypatch):
    two(tmp_path)
    monkeypatch.setattr(decode, "MAX_PIXELS", 4 * 3 * 5 * 5)
    for size in (None, 6):
        with pytest.raises(DataFormatError, match=r"pixels of at most 300 bytes.* at most 5"):
            load_images(tmp_path, size=size)
    assert load_images(tmp_path, size=5)[0].image_shape == (5, 5, 3)


def test_an_image_of_no_use_is_refused_before_it_is_resized(tmp_path, bounded):
    two(tmp_path)
    path = save(tmp_path, "train/dog/z.png", Image.new("L", (1, 60_000)))
    with bounded(), pytest.raises(DataFormatError, match="60,000 x 1 pixels, of which no square"):
        load_images(tmp_path, size=1024)
    Image.new("L", (200, 1)).save(path)
    assert load_images(tmp_path, size=8)[0].image_shape == (8, 8, 3)


def test_sizes_out_of_range_are_refused(tmp_path):
    for size in (0, 2**15):
        with pytest.raises(ValueError, match="size must be"):
            load_images(tmp_path, size=size)


def test_without_pillow_image_files_are_refused_and_arrays_are_read(tmp_path, monkeypatch):
    samples.write_cifar10(tmp_path / "c")
    two(tmp_path / "f")
    for name in [name for name in sys.modules if name == "PIL" or name.startswith("PIL.")]:
        monkeypatch.delitem(sys.modules, name)
    whole = builtins.__import__

    def without(name, *rest, **options):
        if name == "PIL" or name.startswith("PIL."):
            raise ImportError(name)
        return whole(name, *rest, **options)

    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ValueError, match=r'pip install "flax-linattn\[images\]"'):
        load_images(tmp_path / "f")
    assert load_images(tmp_path / "c")[0].num_examples == 20


IMAGES, LABELS = "train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


@pytest.mark.parametrize(
    ("kind", "name", "change", "message"),
    [
        ("cifar10", "data_batch_1.bin", lambda c: c[:-1],
         r"data_batch_1\.bin: expected records of 3,073 bytes"),
        ("cifar10", "data_batch_1.bin", lambda c: b"", "expected records of 3,073 bytes"),
        ("cifar10", "test_batch.bin", lambda c: b"\x0a" + c[1:],
         r"test_batch\.bin: expected labels below 10"),
        ("cifar10", "batches.meta.txt", lambda c: b"a\na\n",
         "expected the distinct names of the classes"),
        ("cifar10", "batches.meta.txt", lambda c: b"", "got none"),
        ("cifar10", "test_batch.bin", None, r"expected test_batch\.bin next to data_batch_1\.bin"),
        ("idx", IMAGES, lambda c: c[:-1], r"expected 15,680 bytes for an array \[20, "),
        ("idx", IMAGES, lambda c: c[:5], "a file that begins with 00 00 08 03"),
        ("idx", LABELS, lambda c: b"\0\0\x08\x03" + c[4:], "begins with 00 00 08 01"),
        ("idx", LABELS, lambda c: c[:4] + b"\0\0\0\x01a", "expected 20 labels"),
        ("idx", "t10k-images-idx3-ubyte", lambda c: c[:4] + bytes(12), "expected .*, got"),
        ("idx_gz", f"{IMAGES}.gz", lambda c: c[:-20],
         r"idx3-ubyte\.gz: expected a whole \.gz stream"),
    ],
)  # fmt: skip
def test_damaged_arrays_of_images_are_named(kind, name, change, message, tmp_path):
    folder = (WRITERS | {"cifar10": lambda folder: samples.write_cifar10(folder, 1)})[kind](
        tmp_path
    )
    if change is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(change((folder / name).read_bytes()))
    with pytest.raises(DataFormatError, match=message):
        load_images(folder)


def test_a_gz_of_idx_that_grows_without_end_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(unpacking, "MAX_UNPACKED_BYTES", 2**20)
    folder = samples.write_idx(tmp_path, 20, zipped=True)
    for count, message in ((20, "15,680 bytes for an array .* got more"), (2**15, "at most .* MB")):
        with gzip.open(folder / "train-images-idx3-ubyte.gz", "wb") as file:
            file.write(struct.pack(">4I", 0x803, count, 28, 28) + bytes(2**24))
        with pytest.raises(DataFormatError, match=rf"idx3-ubyte\.gz: expected {message}"):
            load_images(folder)


def test_no_images_at_all(tmp_path):
    with pytest.raises(DataFormatError, match="expected images in folders train/CLASS"):
        load_images(tmp_path)
    with pytest.raises(FileNotFoundError):
        load_images(tmp_path / "none")


def test_pictures_that_are_alike_give_the_same_bytes_in_any_order(tmp_path):
    """Decoding in threads keeps each image at its own row."""
    folder = samples.write_image_folder(tmp_path / "a", tuple("abcdefg"), 45, 4)
    train, _ = load_images(packed(folder, "tar"))
    expected = [np.asarray(Image.open(path)) for path in sorted((folder / "train").glob("*/*"))]
    assert np.array_equal(train.pixels, expected)

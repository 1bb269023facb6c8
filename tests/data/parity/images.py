"""Writes datasets and folders of images, and what Pillow and torchvision read.

images.py FOLDER writes to the folder:
  decoded/      images of many kinds, each with NAME.rgb: Pillow's pixels, after
                their width and height as little-endian words
  tree/         an ImageFolder; tree_SIZE.bin: its images as torchvision resizes
                and cuts them, tree.json: its classes, files and labels
  MNIST/raw/, FashionMNIST/raw/, cifar100/: small datasets, and for each
                NAME_SPLIT.bin: images and labels as torchvision reads them
"""

import gzip
import hashlib
import json
import pathlib
import pickle
import struct
import sys

import numpy as np
from PIL import Image
from torchvision import datasets, transforms

SIZES = (8, 32, 50, 224)
random = np.random.default_rng(5)


def photo(width, height):
    """Returns smooth shapes with some noise, like a photograph."""
    y, x = np.mgrid[0:height, 0:width].astype(float)
    planes = []
    for phase in (0.0, 1.3, 2.9):
        wave = np.sin(x / 9 + phase) + np.cos(y / 7 - phase) + x * y / 4000
        planes.append(wave * 50 + 120 + random.normal(0, 12, (height, width)))
    return np.clip(np.stack(planes, 2), 0, 255).astype(np.uint8)


def noise(shape, kind=np.uint8):
    return random.integers(0, np.iinfo(kind).max, shape, kind, endpoint=True)


def png_chunks(colour, depth, rows, extra=b""):
    """Makes a PNG that Pillow can't write. `rows` are whole scan lines."""
    import zlib

    def chunk(name, data):
        body = name + data
        return struct.pack(">I", len(data)) + body + struct.pack(
            ">I", zlib.crc32(body))

    height = len(rows)
    bytes_a_pixel = {2: 3, 4: 2, 6: 4, 0: 1}[colour] * depth // 8
    header = struct.pack(">IIBBBBB", len(rows[0]) // bytes_a_pixel, height,
                         depth, colour, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra
            + chunk(b"IDAT", data) + chunk(b"IEND", b""))


def write_images(folder):
    """Writes every kind of PNG and JPEG that can be read."""
    folder.mkdir(parents=True)
    pixels = photo(61, 43)
    image = Image.fromarray(pixels)
    image.save(folder / "rgb.png")
    image.convert("L").save(folder / "gray.png")
    image.convert("1").save(folder / "black_and_white.png")
    image.quantize(200).save(folder / "palette.png")
    image.quantize(3).save(folder / "palette_2_bits.png", bits=2)
    image.quantize(40).save(folder / "palette_clear.png", transparency=3)
    Image.fromarray(noise((43, 61, 4))).save(folder / "alpha.png")
    Image.fromarray(noise((43, 61, 2)), "LA").save(folder / "gray_alpha.png")
    image.save(folder / "clear_colour.png", transparency=(1, 2, 3))
    image.convert("L").save(folder / "clear_gray.png", transparency=9)
    image.save(folder / "gamma.png", icc_profile=b"not a profile")
    for name, colour, channels in (("rgb_16", 2, 3), ("alpha_16", 6, 4),
                                   ("gray_alpha_16", 4, 2)):
        rows = [noise(31 * channels, np.uint16).astype(">u2").tobytes()
                for _ in range(9)]
        (folder / f"{name}.png").write_bytes(png_chunks(colour, 16, rows))
    for quality in (30, 75, 95, 100):
        for sampling in (0, 1, 2):
            image.save(folder / f"q{quality}_s{sampling}.jpg", quality=quality,
                       subsampling=sampling)
    image.save(folder / "progressive.jpg", progressive=True, optimize=True)
    image.convert("L").save(folder / "gray.jpeg")
    image.save(folder / "restarts.jpg", restart_marker_blocks=2)
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated
    image.save(folder / "turned.jpg", exif=exif)
    Image.fromarray(photo(1, 1)).save(folder / "one.png")
    Image.fromarray(photo(1, 1)).save(folder / "one.jpg")
    (folder / "wrong_name.png").write_bytes(
        (folder / "progressive.jpg").read_bytes())
    # A stray byte before the end, as in some files of ImageNet.
    whole = (folder / "q75_s0.jpg").read_bytes()
    (folder / "stray.jpg").write_bytes(whole[:-2] + b"\x11" + whole[-2:])
    # CMYK, then without the marker that says so, and as YCCK, which Pillow
    # can't write. The transform is the last byte of Adobe's marker.
    cmyk = Image.fromarray(noise((43, 61, 4)), "CMYK")
    cmyk.save(folder / "cmyk.jpg", quality=95)
    cmyk.resize((97, 33)).save(folder / "cmyk_progressive.jpg", quality=60,
                               progressive=True)
    image.convert("CMYK").save(folder / "cmyk_photo.jpg")
    whole = (folder / "cmyk_photo.jpg").read_bytes()
    marker = whole.index(b"\xff\xee\x00\x0eAdobe")
    (folder / "cmyk_unmarked.jpg").write_bytes(whole[:marker]
                                               + whole[marker + 16:])
    (folder / "ycck.jpg").write_bytes(whole[:marker + 15] + b"\2"
                                      + whole[marker + 16:])
    for path in sorted(folder.iterdir()):
        rgb = Image.open(path).convert("RGB")
        (folder / f"{path.name}.rgb").write_bytes(
            struct.pack("<II", *rgb.size) + rgb.tobytes())
    write_gray_16(folder)


def write_gray_16(folder):
    """Pillow limits these values to 255. We read the higher byte, as Pillow
    does for 16-bit gray with alpha and for 16-bit colours.
    """
    gray = noise((9, 31), np.uint16)
    rows = [row.astype(">u2").tobytes() for row in gray]
    image = png_chunks(0, 16, rows)
    (folder / "gray_16.png").write_bytes(image)
    rgb = np.repeat((gray >> 8).astype(np.uint8)[:, :, None], 3, 2)
    (folder / "gray_16.png.rgb").write_bytes(
        struct.pack("<II", 31, 9) + rgb.tobytes())


def write_tree(folder, root):
    """Writes classes and names that are easy to sort wrongly."""
    shapes = [(40, 40), (64, 48), (48, 64), (33, 90), (301, 77), (9, 8),
              (500, 375), (32, 32), (35, 32), (32, 37), (31, 300)]
    names = ["10.png", "2.png", "B.JPG", "a.jpeg", "deep/x.png", "Deep.png",
             "deep/y/z.jpg", "\u00e9.png", "b-.png", "b.png", "_.Png"]
    for split, count in (("train", len(names)), ("val", 4)):
        for number, class_name in enumerate(("z", "Zebra", "a b", "\u00e4")):
            for i in range(count):
                path = root / split / class_name / names[i]
                path.parent.mkdir(parents=True, exist_ok=True)
                size = shapes[(i + 3 * number) % len(shapes)]
                image = Image.fromarray(photo(*size))
                # As PNG, so that only resizing is compared.
                image.save(path, format="PNG")
    (root / "train" / "z" / "notes.txt").write_text("not an image")
    for size in SIZES:
        cut = transforms.Compose([transforms.Resize(size),
                                  transforms.CenterCrop(size)])
        data = datasets.ImageFolder(root / "train", cut)
        (folder / f"tree_{size}.bin").write_bytes(b"".join(
            np.asarray(image).transpose(2, 0, 1).tobytes()
            for image, _ in data))
    for split in ("train", "val"):
        data = datasets.ImageFolder(root / split)
        (folder / f"tree_{split}.json").write_text(json.dumps(
            {"classes": data.classes, "labels": data.targets}))


def write_read(path, images, labels):
    path.write_bytes(np.ascontiguousarray(images).tobytes()
                     + np.asarray(labels, np.uint8).tobytes())


def write_mnist(folder, kind):
    raw = folder / kind.__name__ / "raw"
    raw.mkdir(parents=True)
    for split, count in (("train", 70), ("t10k", 30)):
        images, labels = noise((count, 28, 28)), noise(count) % 10
        for name, array in ((f"{split}-images-idx3-ubyte", images),
                            (f"{split}-labels-idx1-ubyte", labels)):
            header = struct.pack(">HBB", 0, 8, array.ndim)
            header += struct.pack(f">{array.ndim}I", *array.shape)
            (raw / name).write_bytes(header + array.tobytes())
    for split in (True, False):
        data = kind(folder, train=split)
        write_read(folder / f"{kind.__name__}_{'train' if split else 'test'}"
                   ".bin", data.data.numpy(), data.targets.numpy())
    # torchvision reads the uncompressed files, and we read the compressed ones.
    for path in list(raw.iterdir()):
        (raw / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()


def write_cifar100(folder):
    python, binary = folder / "cifar-100-python", folder / "cifar100"
    python.mkdir()
    binary.mkdir()
    lists = {}
    for split, count in (("train", 70), ("test", 30)):
        images = noise((count, 3072))
        fine, coarse = noise(count) % 100, noise(count) % 20
        content = pickle.dumps({"data": images, "fine_labels": fine.tolist(),
                                "coarse_labels": coarse.tolist()})
        (python / split).write_bytes(content)
        lists[split] = [[split, hashlib.md5(content).hexdigest()]]
        records = np.concatenate([coarse[:, None], fine[:, None], images], 1)
        (binary / f"{split}.bin").write_bytes(records.tobytes())
    meta = pickle.dumps({"fine_label_names": [str(i) for i in range(100)]})
    (python / "meta").write_bytes(meta)

    class Small(datasets.CIFAR100):
        train_list, test_list = lists["train"], lists["test"]
        meta = {"filename": "meta", "key": "fine_label_names",
                "md5": hashlib.md5((python / "meta").read_bytes()).hexdigest()}

    for split in ("train", "test"):
        data = Small(folder, train=split == "train")
        write_read(folder / f"CIFAR100_{split}.bin",
                   data.data.transpose(0, 3, 1, 2), data.targets)


def main():
    folder = pathlib.Path(sys.argv[1])
    write_images(folder / "decoded")
    write_tree(folder, folder / "tree")
    write_mnist(folder, datasets.MNIST)
    write_mnist(folder, datasets.FashionMNIST)
    write_cifar100(folder)


main()

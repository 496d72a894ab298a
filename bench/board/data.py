"""Made-up data in the layouts that the scripts of the board read. All of it is drawn from a fixed seed.

Each function writes below the folder in which the script runs, and takes the keywords that `scripts.toml` gives it. Sizes are in
pixels, counts in files or samples.
"""

from __future__ import annotations

import pickle
import random
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image


def _pictures(width: int, height: int, different: int = 6) -> Iterator[Image.Image]:
    """Pictures with coarse and fine structure, so that decoding them takes what a photograph takes."""
    draw = np.random.default_rng(0)
    bases = []
    for _ in range(different):
        small = Image.fromarray(draw.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        coarse = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC), dtype=np.int16)
        fine = draw.normal(0, 12, (height, width, 1)).astype(np.int16)
        bases.append(np.clip(coarse + fine, 0, 255).astype(np.uint8))
    turn = 0
    while True:
        yield Image.fromarray(np.roll(bases[turn % different], 17 * turn, axis=1))
        turn += 1


def mnist(root: Path, at: str, train: int = 6000, test: int = 500) -> None:
    """The four uncompressed files of MNIST, in `at` (the folder `raw`)."""
    folder = root / at
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    for name, count in (("train", train), ("t10k", test)):
        images = draw.integers(0, 256, (count, 28, 28), dtype=np.uint8) * (draw.random((count, 28, 28)) < 0.2)
        labels = (np.arange(count) % 10).astype(np.uint8)
        draw.shuffle(labels)
        (folder / f"{name}-images-idx3-ubyte").write_bytes(
            struct.pack(">IIII", 2051, count, 28, 28) + images.astype(np.uint8).tobytes()
        )
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, count) + labels.tobytes())


def classes(
    root: Path, at: str, parts: dict[str, int], kinds: int = 4, width: int = 500, height: int = 375
) -> None:
    """A folder of JPEG files for each class, below each of `parts`; its value is the number of files of a class."""
    pictures = _pictures(width, height)
    for part, count in parts.items():
        for kind in range(kinds):
            folder = root / at / part / f"class{kind}"
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                next(pictures).save(folder / f"{number:04}.jpg", quality=90)


def pictures(root: Path, at: str, count: int, width: int, height: int, kind: str = "jpg") -> None:
    """One folder of pictures."""
    folder = root / at
    folder.mkdir(parents=True, exist_ok=True)
    source = _pictures(width, height)
    for number in range(1, count + 1):
        next(source).save(folder / f"{number:06}.{kind}", compress_level=1)


def faces(root: Path, at: str, count: int, attributes: list[str]) -> None:
    """Pictures of CelebA's size in `at`/images, and its list of attributes."""
    pictures(root, f"{at}/images", count, 178, 218)
    draw = random.Random(0)
    rows = [
        f"{n:06}.jpg " + " ".join(draw.choice(("1", "-1")) for _ in attributes) for n in range(1, count + 1)
    ]
    (root / at / "list_attr_celeba.txt").write_text(
        "\n".join([str(count), " ".join(attributes), *rows]) + "\n"
    )


def segments(
    root: Path,
    images: str,
    masks: str,
    count: int,
    width: int,
    height: int,
    suffix: str = "",
    kind: str = "jpg",
) -> None:
    """Pictures and, with the same names and `suffix`, masks of the labels 0 and 1 as PNG."""
    pictures(root, images, count, width, height, kind)
    (root / masks).mkdir(parents=True, exist_ok=True)
    row, column = np.ogrid[:height, :width]
    for number in range(1, count + 1):
        disc = (row - height // 2) ** 2 + (column - width // 2) ** 2 < (
            height * (10 + number % 20) // 60
        ) ** 2
        Image.fromarray(disc.astype(np.uint8)).save(root / masks / f"{number:06}{suffix}.png")


def words(root: Path, at: str, count: int) -> None:
    """A file with a made-up name on each line."""
    draw = random.Random(0)
    lines = ("".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(3, 14))) for _ in range(count))
    path = root / at
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def text(root: Path, files: dict[str, int], vocabulary: int = 2000, first: str = "") -> None:
    """Text files of so many words, out of `vocabulary` ones, twelve on a line. Each begins with `first`."""
    draw = random.Random(0)
    known = [
        "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(vocabulary)
    ]
    for at, count in files.items():
        path = root / at
        path.parent.mkdir(parents=True, exist_ok=True)
        chosen = draw.choices(known, k=count)
        path.write_text(first + "\n".join(" ".join(chosen[i : i + 12]) for i in range(0, count, 12)) + "\n")


def tokens(root: Path, files: dict[str, int], vocabulary: int, meta: str = "") -> None:
    """Files of so many 16-bit token numbers, and the pickle with the size of the vocabulary."""
    draw = np.random.default_rng(0)
    for at, count in files.items():
        path = root / at
        path.parent.mkdir(parents=True, exist_ok=True)
        draw.integers(0, vocabulary, count, dtype=np.uint16).tofile(path)
    if meta:
        (root / meta).write_bytes(pickle.dumps({"vocab_size": vocabulary}))


def graphs(root: Path, at: str, count: int, nodes: int) -> None:
    """Labeled graphs as text: for each its size and label, then a line with tag and neighbors for each node."""
    draw = random.Random(0)
    lines = [str(count)]
    for number in range(count):
        size = draw.randint(nodes // 2, nodes)
        near: list[set[int]] = [set() for _ in range(size)]
        for node in range(1, size):
            for other in {draw.randrange(node), node - 1}:
                near[node].add(other)
                near[other].add(node)
        lines.append(f"{size} {number % 2}")
        lines += [" ".join(map(str, (draw.randrange(7), len(found), *sorted(found)))) for found in near]
    path = root / at
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def citations(root: Path, at: str, papers: int, words_known: int) -> None:
    """`at`.content, a line with number, words and label for each paper, and `at`.cites, the pairs of papers."""
    draw = random.Random(0)
    path = root / at
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    for paper in range(papers):
        has = set(draw.sample(range(words_known), 20))
        rows.append(
            " ".join([str(paper), *("01"[word in has] for word in range(words_known)), f"topic{paper % 7}"])
        )
    path.with_suffix(".content").write_text("\n".join(rows) + "\n")
    pairs = ((paper, draw.randrange(papers)) for paper in range(papers) for _ in range(2))
    path.with_suffix(".cites").write_text("".join(f"{one} {other}\n" for one, other in pairs if one != other))


def folders(root: Path, at: list[str]) -> None:
    """Empty folders that a script expects."""
    for name in at:
        (root / name).mkdir(parents=True, exist_ok=True)

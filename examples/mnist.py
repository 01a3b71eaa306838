"""Train on MNIST from its four IDX files: `python examples/mnist.py --data DIR`."""

import argparse
import gzip
import math
import sys
from pathlib import Path

import jax
import numpy as np
import optax
from flax import nnx

from railbus.subscribers import LossMonitor, ModelCheckpoint, TimeMonitor
from railbus.trainer import ArrayDataset, Trainer

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def read_idx(folder: Path, name: str) -> np.ndarray:
    """The array in an IDX file of unsigned bytes, plain or with `.gz`.

    Raises:
        ValueError: the file is missing, cut short, or no such file.
    """
    path = next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)
    if path is None:
        raise ValueError(f"{folder / name} is missing; --data needs {', '.join(FILES)}, or .gz")
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    dims = int(name.partition("idx")[2][0])
    if len(data) < 4 + 4 * dims or data[:4] != bytes((0, 0, 8, dims)):
        raise ValueError(f"{path} is no IDX file of unsigned bytes with {dims} dimensions")
    shape = [int.from_bytes(data[at : at + 4], "big") for at in range(4, 4 + 4 * dims, 4)]
    body = data[4 + 4 * dims :]
    if len(body) != math.prod(shape):
        raise ValueError(f"{path} should hold {math.prod(shape)} bytes of data, it has {len(body)}")
    return np.frombuffer(body, np.uint8).reshape(shape)


def datasets(folder: Path, batch_size: int) -> tuple[ArrayDataset, ArrayDataset]:
    """Training and test images as floats from 0 to 1, with their labels."""
    images, labels, test_images, test_labels = (read_idx(folder, name) for name in FILES)
    sets = ((images, labels, True), (test_images, test_labels, False))
    made = []
    for pictures, numbers, shuffle in sets:
        if len(pictures) != len(numbers):
            raise ValueError(f"{len(pictures)} images do not go with {len(numbers)} labels")
        pixels = pictures.reshape(len(pictures), -1).astype(np.float32) / 255
        made.append(
            ArrayDataset(pixels, numbers.astype(np.int32), batch_size=batch_size, shuffle=shuffle)
        )
    return made[0], made[1]


class Mlp(nnx.Module):
    """Pixels in, ten classes out."""

    def __init__(self, pixels: int, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(pixels, 128, rngs=rngs)
        self.out = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(nnx.relu(self.hidden(x)))


def main() -> int:
    """Train; 1 when the data cannot be read."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the IDX files")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--directory", type=Path, default=Path("runs/mnist"), help="checkpoints")
    arguments = parser.parse_args()
    try:
        train, test = datasets(arguments.data, arguments.batch_size)
    except ValueError as error:
        print(f"mnist: {error}", file=sys.stderr)
        return 1
    trainer = Trainer(
        Mlp(train.arrays[0].shape[1], nnx.Rngs(0)),
        optax.softmax_cross_entropy_with_integer_labels,
        optax.sgd(0.1, momentum=0.9),
        {"accuracy"},
    )
    best = ModelCheckpoint("mnist", arguments.directory, monitor="accuracy", mode="max")
    result = trainer.fit(
        arguments.epochs, train, test, callbacks=[LossMonitor(100), TimeMonitor(), best]
    )
    print(f"{result}, accuracy {result.metrics['accuracy']:.3f}, {best.latest_ckpt_file_name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

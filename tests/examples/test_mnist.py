"""The MNIST example on small IDX files."""

import gzip
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent.parent


def write_idx(path: Path, array: np.ndarray) -> None:
    dims = b"".join(size.to_bytes(4, "big") for size in array.shape)
    data = bytes((0, 0, 8, array.ndim)) + dims + array.tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Images whose bright row is their label, some files compressed."""
    for part, count, ending in (("train", 200, ""), ("t10k", 50, ".gz")):
        labels = np.arange(count, dtype=np.uint8) % 10
        images = np.zeros((count, 28, 28), np.uint8)
        images[np.arange(count), labels * 2] = 255
        write_idx(tmp_path / f"{part}-images-idx3-ubyte{ending}", images)
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte{ending}", labels)
    return tmp_path


def run(data: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "examples/mnist.py"), "--data", str(data), "--epochs", "4"]
        + ["--batch-size", "20", "--directory", str(data / "out")],
        capture_output=True,
        text=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("JAX_NUMPY")},
    )


def test_it_reads_plain_and_compressed_files_and_learns(data):
    done = run(data)

    assert done.returncode == 0, done.stderr
    assert "completed after step 40 of epoch 4, accuracy 1.000" in done.stdout
    assert list((data / "out").glob("mnist-*.ckpt"))


def test_a_missing_file_is_one_clear_line(data):
    (data / "train-labels-idx1-ubyte").unlink()

    done = run(data)

    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "train-labels-idx1-ubyte is missing" in done.stderr


def test_a_file_that_was_cut_short_is_one_clear_line(data):
    file = data / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:-1])

    done = run(data)

    assert done.returncode == 1
    assert "should hold 156800 bytes of data, it has 156799" in done.stderr

"""MindSpore's tutorial callbacks run as written."""

import os
import re
import subprocess
import sys
from pathlib import Path

from railbus.trainer import load_checkpoint

ROOT = Path(__file__).parent.parent.parent


def test_the_tutorial_callbacks_print_save_and_stop(tmp_path):
    plain = {name: value for name, value in os.environ.items() if not name.startswith("JAX_NUMPY")}
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/mindspore_tutorial.py")]
        + ["--directory", str(tmp_path), "--seconds", "0.2"],
        capture_output=True,
        text=True,
        env=plain,
    )

    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"epoch:  1  step:  \d+  loss:  [0-9.]+\n", done.stdout)) == 29
    assert "completed after step 29 of epoch 1" in done.stdout
    saved = re.search(r"Saved checkpoint, loss:0\.\d{7}, current step num: *(\d+)\.", done.stdout)
    assert saved, done.stdout
    (file,) = tmp_path.iterdir()
    assert file.name == f"{(int(saved[1]) - 1) // 29 + 1}_{saved[1]}.ckpt"
    assert load_checkpoint(file)["kernel"].shape == (64, 10)
    assert f"stopped by SaveCkptMonitor after step {saved[1]} of epoch" in done.stdout
    assert re.search(r"Begin training, time is: [0-9.]+\n", done.stdout)
    ended = re.search(r"End training, time: [0-9.]+, epoch: \d+, step: (\d+), loss: ", done.stdout)
    assert ended
    assert f"stopped by StopTimeMonitor after step {ended[1]} of epoch" in done.stdout

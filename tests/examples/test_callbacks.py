"""The callbacks written by hand do what the built-in ones do."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_each_callback_by_hand_gives_what_the_built_in_one_gives():
    plain = {name: value for name, value in os.environ.items() if not name.startswith("JAX_NUMPY")}
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/callbacks.py"), "--epochs", "6", "--seconds", "0.1"],
        capture_output=True,
        text=True,
        env=plain,
    )

    assert done.returncode == 0, done.stderr
    shown = dict(re.findall(r"^  (\w+) +(.+)$", done.stdout, re.MULTILINE))
    assert shown["ReduceByHand"] == shown["ReduceLROnPlateau"]
    assert re.fullmatch(r"rate 1e-0[2-9], eval_loss 0\.\d+", shown["ReduceByHand"])
    assert shown["SaveBestByHand"] == shown["ModelCheckpoint"]
    assert "the same weights   yes" in done.stdout
    assert shown["StopByHand"] == shown["StopAtTime"] == "stopped: 0.1 s are over"

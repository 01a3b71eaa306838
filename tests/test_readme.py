"""The README's Python blocks run as they stand, one after another."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_python_blocks_of_the_readme_run_in_their_order(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    script = tmp_path / "readme.py"
    script.write_text("\n".join(blocks))

    # optax's adam does not pass the strict promotion rules of the other tests.
    plain = {name: value for name, value in os.environ.items() if not name.startswith("JAX_NUMPY")}
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, cwd=tmp_path, env=plain
    )

    assert done.returncode == 0, done.stderr
    assert "epoch: 1 step: 50, loss is " in done.stdout
    assert "completed after step 171 of epoch 3 {'accuracy': " in done.stdout
    assert "stopped by HalveOnPlateau after step " in done.stdout
    assert ": the third plateau" in done.stdout
    assert "on_train_step_end #101 " in done.stdout
    assert "stopped by operator after step " in done.stdout
    assert done.stdout.rstrip().endswith(": asked by the operator")

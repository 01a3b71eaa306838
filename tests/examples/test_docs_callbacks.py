"""docs/callbacks.md: its Python blocks run in their order, and its table has every built-in."""

import os
import re
import subprocess
import sys
from pathlib import Path

from railbus import subscribers
from railbus.schemas.params import FACTS
from railbus.subscribers import Callback

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs/callbacks.md").read_text()


def test_the_python_blocks_of_the_page_run_in_their_order(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks))

    plain = {name: value for name, value in os.environ.items() if not name.startswith("JAX_NUMPY")}
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, cwd=tmp_path, env=plain
    )

    assert done.returncode == 0, done.stderr
    assert re.search(r"epoch 2: loss \d\.\d{3}, {'mse': .*'eval_loss': ", done.stdout)
    assert "stopped by Converged after step " in done.stdout
    assert "epoch 3: learning rate 0.0125\n" in done.stdout
    assert "stopped by Pause after step 10 of epoch 3: to be continued" in done.stdout
    assert "completed after step 16 of epoch 4" in done.stdout


def test_the_page_says_where_each_of_the_runs_own_keys_is():
    keys = PAGE.partition("## What `cb_params` holds")[2].partition("\n- ")[0]

    assert {name for name in FACTS if f"`{name}`" not in keys} == set()


def test_the_table_has_every_built_in_once_and_says_which_observe():
    rows = re.findall(r"^\| `(\w+)` \| ([PO]) \| ", PAGE, re.MULTILINE)

    listed = {name: kind for name, kind in rows}
    offered = {name: getattr(subscribers, name) for name in dir(subscribers)}
    built_in = {
        name: "O" if one.observes else "P"
        for name, one in offered.items()
        if isinstance(one, type) and issubclass(one, Callback) and one is not Callback
    }
    assert len(rows) == len(listed)
    assert listed == built_in

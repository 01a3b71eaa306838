"""The same as `killed.py` with a real trainer: it computes while it is killed."""

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from railbus.subscribers import Recorder
from tests.semantics.killed import Witness, serve
from tests.subscribers.scripted import DATA, make_trainer


def attempt(folder: Path, flush: Any, pause: int) -> None:
    """One run; its first events come when it is compiled."""
    recorder, witness = Recorder(folder, flush), Witness(folder / "seen", pause)
    make_trainer().fit(3000, DATA, DATA, 50, [witness, recorder], run_id="run")


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    serve(attempt)

"""`WandbTracker`: runs in Weights & Biases."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from railbus.schemas.errors import ArgumentError, ArgumentTypeError

from .optional import optional
from .tracker import Tracker

MODES = ("online", "offline", "disabled")


class WandbTracker(Tracker):
    """One W&B run per run, named after it; a run that is open already is left alone.

    For `Tracking(WandbTracker("project"))`. A failed run ends with exit code 1; the status is in the
    summary. W&B's own service process stays until the program ends, as with W&B alone. Keras has
    `WandbMetricsLogger` from W&B, Lightning `WandbLogger`; MindSpore has none.

    Args:
        project: in W&B.
        entity: user or team; None is W&B's default.
        mode: "online", "offline" (files for `wandb sync`) or "disabled".
        directory: where W&B puts its `wandb` folder; None is W&B's default.

    Raises:
        ArgumentTypeError, ArgumentError: for wrong values, or if wandb is not installed
            (`pip install 'railbus[wandb]'`).
    """

    def __init__(
        self,
        project: str,
        entity: str | None = None,
        mode: str = "online",
        directory: str | Path | None = None,
    ) -> None:
        if not isinstance(project, str) or not isinstance(entity, (str, type(None))):
            raise ArgumentTypeError(f"project and entity must be str, got {project!r}, {entity!r}")
        if mode not in MODES:
            raise ArgumentError(f"mode must be one of {MODES}, got {mode!r}")
        if not isinstance(directory, (str, Path, type(None))):
            raise ArgumentTypeError(f"directory must be a path or None, got {directory!r}")
        self._wandb = optional("wandb", "wandb")
        self._place = {"project": project, "entity": entity, "mode": mode, "dir": directory}
        self._run: Any = None

    def start(self, run_id: str, config: Mapping[str, Any], at: float) -> None:
        """Open a W&B run."""
        if self._place["dir"] is not None:
            Path(self._place["dir"]).mkdir(parents=True, exist_ok=True)
        self._run = self._wandb.init(
            **self._place,
            name=run_id,
            config=dict(config),
            reinit="create_new",
            settings=self._wandb.Settings(console="off"),
        )

    def log(self, values: Mapping[str, float], step: int, at: float) -> None:
        """Log at `step`; what comes twice for a step is one row."""
        self._run.log({**values, "_timestamp": at}, step=step)

    def end(self, status: str, at: float) -> None:
        """Finish it; waits until W&B has everything."""
        self._run.summary["status"] = status
        self._run.finish(exit_code=int(status == "failed"))

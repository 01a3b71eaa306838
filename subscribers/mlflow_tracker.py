"""`MLflowTracker`: runs in MLflow."""

from collections.abc import Mapping
from typing import Any

from railbus.schemas.errors import ArgumentTypeError

from .optional import optional
from .tracker import Tracker


class MLflowTracker(Tracker):
    """One MLflow run per run, named after it; MLflow's active run is left alone.

    For `Tracking(MLflowTracker("experiment"))`. The configuration becomes parameters; a completed or
    stopped run is FINISHED, a failed one FAILED, and the tag `railbus.status` says which it was.
    Lightning has `MLFlowLogger`, Keras and MindSpore have none.

    Args:
        experiment: made when needed.
        tracking_uri: for example "sqlite:///mlflow.db" or a server's; None is MLflow's default.

    Raises:
        ArgumentTypeError, ArgumentError: for what is no str, or if mlflow is not installed
            (`pip install 'railbus[mlflow]'`).
    """

    def __init__(self, experiment: str, tracking_uri: str | None = None) -> None:
        if not isinstance(experiment, str):
            raise ArgumentTypeError(f"experiment must be a str, got {experiment!r}")
        if not isinstance(tracking_uri, (str, type(None))):
            raise ArgumentTypeError(f"tracking_uri must be a str or None, got {tracking_uri!r}")
        self._mlflow = optional("mlflow", "mlflow")
        self._entities = optional("mlflow.entities", "mlflow")
        self._experiment, self._uri = experiment, tracking_uri
        self._client: Any = None
        self._run = ""

    def start(self, run_id: str, config: Mapping[str, Any], at: float) -> None:
        """Open an MLflow run."""
        self._client = client = self._mlflow.MlflowClient(self._uri)
        found = client.get_experiment_by_name(self._experiment)
        place = client.create_experiment(self._experiment) if found is None else found.experiment_id
        run = client.create_run(place, run_name=run_id, start_time=_milliseconds(at))
        self._run = run.info.run_id
        params = [self._entities.Param(name, str(value)) for name, value in config.items()]
        try:
            client.log_batch(self._run, params=params)
        except Exception:
            self.end("failed", at)  # it would be shown as running for ever
            raise

    def log(self, values: Mapping[str, float], step: int, at: float) -> None:
        """Log metrics at `step`."""
        time = _milliseconds(at)
        metrics = [self._entities.Metric(name, one, time, step) for name, one in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def end(self, status: str, at: float) -> None:
        """Terminate it."""
        self._client.set_tag(self._run, "railbus.status", status)
        ended = "FAILED" if status == "failed" else "FINISHED"
        self._client.set_terminated(self._run, ended, _milliseconds(at))


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)

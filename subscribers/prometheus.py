"""`Prometheus`: a run's state for a Prometheus server to scrape."""

from typing import Any

from railbus.schemas.errors import ArgumentError, ArgumentTypeError

from .checks import count
from .closing import Closing
from .context import RunContext
from .optional import optional
from .outputs import loss_of
from .readings import plain, results_of


class Prometheus(Closing):
    """Keeps how far a run is and what it measured as Prometheus metrics.

    At every `on_train_*` hook but `on_train_step_begin`, and at `on_exception`. Values are only
    stored there; text is made when somebody asks, in another thread where that is the server. After
    a run they stay as they are; the counters count on in the next one. A participant. MindSpore,
    Keras and Lightning have none.

    metric                     | kind    | what
    ---------------------------+---------+--------------------------------------------------------
    `railbus_events_total`     | counter | events that were handled, by `hook`
    `railbus_steps_total`      | counter | steps that have ended
    `railbus_epoch`            | gauge   | the epoch
    `railbus_loss`             | gauge   | loss of the last step
    `railbus_hyperparam`       | gauge   | what the optimizer injects, by `name`
    `railbus_metric`           | gauge   | what the last validation found, by `name`; numbers only

    Args:
        port: serve `http://127.0.0.1:<port>/metrics` from the run's begin to its end; 0 takes a
            free port, None serves nothing.
        registry: a `prometheus_client.CollectorRegistry`; one of its own by default.

    Attributes:
        registry: where the metrics are.
        port: what is served on, None while nothing is.

    Raises:
        ArgumentTypeError, ArgumentError: for arguments that cannot work, a `registry` that holds
            these metrics already, or where `prometheus_client` is not installed.
        OSError: the port is taken.
    """

    def __init__(self, port: int | None = None, registry: Any = None) -> None:
        self._asked = None if port is None else count("port", port, 0)
        if self._asked is not None and self._asked > 65535:
            raise ArgumentError(f"port must be at most 65535, got {port}")
        self._client = optional("prometheus_client", "prometheus")
        kind = self._client.CollectorRegistry
        if registry is not None and not isinstance(registry, kind):
            raise ArgumentTypeError(f"registry must be a CollectorRegistry, got {registry!r}")
        self.registry = kind() if registry is None else registry
        try:
            self._define()
        except ValueError as error:
            raise ArgumentError("registry holds a Prometheus callback's metrics already") from error
        self.port: int | None = None
        self._server: tuple[Any, Any] | None = None

    def exposition(self) -> str:
        """All metrics of the registry as Prometheus' text format."""
        text: bytes = self._client.generate_latest(self.registry)
        return text.decode()

    def on_train_begin(self, run_context: RunContext) -> None:
        """Begin to serve, if a port was given."""
        self._seen(run_context)
        if self._asked is not None and self._server is None:
            self._server = self._client.start_http_server(
                self._asked, addr="127.0.0.1", registry=self.registry
            )
            self.port = self._server[0].server_port

    def on_train_epoch_begin(self, run_context: RunContext) -> None:
        """Another epoch."""
        self._seen(run_context)
        self._epoch.set(run_context.original_args().cur_epoch_num)

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Another step."""
        self._seen(run_context)
        self._steps.inc()
        self._loss.set(loss_of(run_context.original_args().net_outputs))
        _set(self._hyperparam, plain(run_context.hyperparams()))

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """What its validation found."""
        self._seen(run_context)
        _set(self._metric, results_of(run_context.original_args()))

    def on_train_end(self, run_context: RunContext) -> None:
        """Serve no longer."""
        self._seen(run_context)
        self._close()

    def on_exception(self, run_context: RunContext, error: BaseException) -> None:
        """Serve no longer."""
        self._seen(run_context)
        self._close()

    def _define(self) -> None:
        client, into = self._client, {"registry": self.registry}
        self._events = client.Counter("railbus_events", "events handled", ["hook"], **into)
        self._steps = client.Counter("railbus_steps", "steps that have ended", **into)
        self._epoch = client.Gauge("railbus_epoch", "the epoch", **into)
        self._loss = client.Gauge("railbus_loss", "loss of the last step", **into)
        self._hyperparam = client.Gauge(
            "railbus_hyperparam", "what the optimizer injects", ["name"], **into
        )
        self._metric = client.Gauge(
            "railbus_metric", "what the last validation found", ["name"], **into
        )

    def _seen(self, run_context: RunContext) -> None:
        self._events.labels(run_context.event.hook.value).inc()

    def _close(self) -> None:
        if self._server is not None:
            server, thread = self._server
            self._server = self.port = None
            server.shutdown()
            server.server_close()
            thread.join()


def _set(gauge: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, (int, float)):
            gauge.labels(name).set(value)

"""`SummaryCollector`: collects what MindSpore's does, into TensorBoard's event files."""

import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from railbus.schemas.errors import ArgumentError

from .checks import count, flag
from .context import RunContext
from .event_file import WritesEvents
from .jsonable import jsonable
from .readings import FACTS, facts_of, leaves_of, loss_of, plain, scalars_of
from .summary_options import lineage_data, specified

logger = logging.getLogger(__name__)

FIRST_PARAMETERS = 5  # that have histograms where no expression chooses
MOST_TENSOR_STEPS = 20  # of a run, where `collect_tensor_freq` is None


class SummaryCollector(WritesEvents):
    """Collects scalars, histograms of parameters, the program and lineage into an event file.

    An observer with a bounded lag of 4096 events: the run waits rather than lose a line. The file,
    `<summary_dir>/events.out.tfevents.<Unix time>.<host>.<run_id>`, is TensorBoard's, as
    MindInsight's are not read elsewhere. Written are

    - at `on_train_begin`: `train_network/auto`, the compiled step's program as StableHLO, once;
      `input_data/auto` and `dataset_graph/auto`, what the data are; `hyperparameters`;
    - at `on_train_step_end` of step 1 and every `collect_freq` steps: `loss/auto` and injected
      hyperparameters (`learning_rate/auto`); at tensor steps `<parameter>/auto`, a histogram of each
      parameter chosen;
    - at `on_train_epoch_end` after a validation: `<name>/auto` of each number it found;
    - at `on_train_end` and `on_exception`: `train_lineage`, `eval_lineage` and
      `custom_lineage_data`, as JSON (NaN and infinities are strings).

    MindSpore's `SummaryCollector` (Keras: `TensorBoard(histogram_freq)`; Lightning has none). Other than there, any
    number of them may run in a process, none keeps a writer process, and none saves checkpoints
    for a loss landscape.

    Args:
        summary_dir: made when a run begins; runs may share it.
        collect_freq: steps between two entries.
        num_process: accepted, without effect: files are written in the observer's thread.
        collect_specified_data: what to collect, by name: `collect_metric` (loss, hyperparameters
            and validations), `collect_graph`, `collect_train_lineage`, `collect_eval_lineage`,
            `collect_input_data`, `collect_dataset_graph`, each a bool; `histogram_regular`, an
            expression that matches the beginning of dotted parameter names, None for the first
            five parameters. `collect_landscape` is refused unless None.
        keep_default_action: whether what is not named there is collected.
        custom_lineage_data: str, int or float by name.
        collect_tensor_freq: steps between two histograms; blocks of steps end there. None is
            `10 * collect_freq`, thinned out to at most 20 times a run.
        max_file_size: in bytes; nothing is written beyond it, which is said once.
        export_options: refused unless None: there are no tensors to export.

    Attributes:
        needs: the network, every `collect_tensor_freq` steps.

    Raises:
        ArgumentTypeError, ArgumentError: for unknown names and values that cannot work, or if
            tensorboardX is not installed (`pip install 'railbus[tensorboard]'`).
    """

    def __init__(
        self,
        summary_dir: str | Path,
        collect_freq: int = 10,
        num_process: int = 32,
        collect_specified_data: Mapping[str, Any] | None = None,
        keep_default_action: bool = True,
        custom_lineage_data: Mapping[str, str | int | float] | None = None,
        collect_tensor_freq: int | None = None,
        max_file_size: int | None = None,
        export_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._freq = count("collect_freq", collect_freq, 1)
        if count("num_process", num_process, 1) != 32:
            logger.info("num_process has no effect: files are written in the observer's thread")
        self._default = flag("keep_default_action", keep_default_action)
        self._wanted = specified(collect_specified_data)
        self._custom = lineage_data(custom_lineage_data)
        self._auto = collect_tensor_freq is None
        if collect_tensor_freq is not None:
            count("collect_tensor_freq", collect_tensor_freq, 1)
        if max_file_size is not None:
            count("max_file_size", max_file_size, 1)
        if export_options is not None:
            raise ArgumentError(f"export_options must be None, got {export_options!r}")
        super().__init__("summary_dir", summary_dir, max_file_size)
        if self._collects("histogram_regular") or self._collects("collect_graph"):
            self.needs = MappingProxyType(
                {"train_network": collect_tensor_freq or 10 * collect_freq}
            )
        self._results: dict[str, float] = {}
        self._stride = 1

    def on_train_begin(self, run_context: RunContext) -> None:
        """Open the file; write what holds for the whole run."""
        super().on_train_begin(run_context)
        cb_params = run_context.original_args()
        self._results = {}
        if self._auto and self.needs:
            steps = cb_params.epoch_num * (cb_params.get("batch_num") or 1)
            looks = steps // self.needs["train_network"]
            self._stride = max(1, -(-looks // MOST_TENSOR_STEPS))
        if self._collects("collect_train_lineage"):
            self._json("hyperparameters", plain(run_context.hyperparams()), run_context)
        if self._collects("collect_dataset_graph"):
            self._json("dataset_graph/auto", facts_of(cb_params, ["train_dataset"]), run_context)
        if self._collects("collect_graph"):
            text = cb_params.train_network.program_text
            self._file.text("train_network/auto", f"```\n{text}\n```", 0, run_context)

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Write the step's numbers, and histograms, when it is time."""
        cb_params = run_context.original_args()
        step = cb_params.cur_step_num
        if step == 1 and self._collects("collect_input_data"):
            element = getattr(cb_params.get("train_dataset_element"), "summary", "")
            self._file.text("input_data/auto", element, step, run_context)
        if self._collects("collect_metric") and (step == 1 or step % self._freq == 0):
            loss, values = loss_of(cb_params), plain(run_context.hyperparams())
            self._scalars(values if loss is None else {"loss": loss, **values}, step, run_context)
        every = self.needs.get("train_network", 0) * self._stride
        if self._collects("histogram_regular") and step % every == 0:
            for name, values in self._chosen(cb_params.train_network.params):
                self._file.histogram(f"{name}/auto", values, step, run_context)

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """Write what the epoch's validation found."""
        cb_params = run_context.original_args()
        results = scalars_of(cb_params)
        self._results = results or self._results
        if self._collects("collect_metric"):
            self._scalars(results, cb_params.cur_step_num, run_context)

    def on_train_end(self, run_context: RunContext) -> None:
        """Write the lineage; close the file."""
        self._lineage(run_context)
        super().on_train_end(run_context)

    def on_exception(self, run_context: RunContext, error: BaseException) -> None:
        """The same for a run that failed."""
        if self._open is not None:
            self._lineage(run_context)
        super().on_exception(run_context, error)

    def _collects(self, name: str) -> bool:
        return bool(self._wanted.get(name, self._default))

    def _chosen(self, params: Any) -> list[tuple[str, Any]]:
        regular = self._wanted.get("histogram_regular", True)
        leaves = list(leaves_of(params))
        if regular is True:
            return leaves[:FIRST_PARAMETERS]
        return [(name, values) for name, values in leaves if re.match(regular, name)]

    def _lineage(self, run_context: RunContext) -> None:
        cb_params = run_context.original_args()
        if self._collects("collect_train_lineage"):
            facts = facts_of(cb_params, FACTS)
            facts |= {name: cb_params.get(name) for name in ("status", "stop_reason", "stop_by")}
            facts |= {"steps": cb_params.get("cur_step_num"), "loss": loss_of(cb_params)}
            self._json("train_lineage", facts | plain(run_context.hyperparams()), run_context)
        if self._collects("collect_eval_lineage") and self._results:
            self._json("eval_lineage", self._results, run_context)
        if self._custom:
            self._json("custom_lineage_data", self._custom, run_context)

    def _scalars(self, values: dict[str, float], step: int, run_context: RunContext) -> None:
        self._file.scalars({f"{name}/auto": one for name, one in values.items()}, step, run_context)

    def _json(self, tag: str, values: Mapping[str, Any], run_context: RunContext) -> None:
        step = run_context.original_args().get("cur_step_num", 0)
        self._file.text(tag, json.dumps(jsonable(values), allow_nan=False), step, run_context)

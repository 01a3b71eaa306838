"""`ModelCheckpoint`: saves the run while it is trained."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from railbus.schemas.errors import ArgumentError, ArgumentTypeError
from railbus.schemas.params import CallbackParams

from .callback import Callback
from .checkpoint_config import CheckpointConfig
from .checkpoint_files import Files, Saved, free_prefix, resumable, said
from .checks import count, flag
from .context import RunContext
from .monitor import Better, Monitor


class ModelCheckpoint(Callback):
    """Saves the run on a schedule, or when a monitored value is among the best; a participant.

    On the schedule at `on_train_step_end`: `<directory>/<prefix>-<epoch>_<step in epoch>.ckpt`, and
    at `on_train_end` the last step if it was not saved (a stopped run too). With `monitor` instead
    at `on_train_epoch_end`, when the value is among the best so far. With `exception_save` of the
    config, also `..._breakpoint.ckpt` in `on_exception`, named by the last step that was committed;
    a run that fails before its first step has none. If files of the prefix are there when a
    run begins, the run's own get `<prefix>_1` and so on, so that nothing is overwritten.

    A file holds network, optimizer, random state, step and epoch, the place in the data and the
    state of every participant, all as they were when the event was committed, so that `resume=`
    goes on from it as if the run had never ended; it appears whole, right after the commit.
    `load_checkpoint` reads its network. With `format="safetensors"` of the config files end in that
    and hold the network alone.

    Called the same in MindSpore, Keras (`monitor`, `mode`) and Lightning (`save_top_k`, `save_last`,
    too).

    Args:
        prefix: of the file names, without "/"; or a function of `cb_params` that gives a file's
            whole name without its ending (on an exception `_breakpoint` follows it). What is there
            under a name that a function gives, or in a folder that one gives, is replaced.
        directory: made when needed; None is the working directory when the run begins; or a
            function of `cb_params` that gives it for each file.
        config: when to save and what to keep, default `CheckpointConfig()`. With `monitor` only its
            format, `async_save`, `exception_save` and `append_info` count.
        monitor: a metric, `eval_loss`, or `loss`, the epoch's last training loss; None saves on the
            schedule.
        mode: whether the smallest (`"min"`) or largest (`"max"`) value is best; `"auto"` knows the
            usual names.
        save_top_k: with `monitor`, how many of the best are kept; 0 saves and keeps every epoch. A
            NaN is never among the best, in either mode; only 0 and `save_last` save its epoch.
        save_last: with `monitor`, also keep the newest epoch as `<prefix>-last.ckpt`; not with a
            function for a prefix.

    Attributes:
        latest_ckpt_file_name: the newest file that is safe, "" before the first (MindSpore's name).
        best: the best monitored value so far, None before the first.

    Raises:
        ArgumentTypeError, ArgumentError: for arguments that cannot work; in `on_train_begin` for a
            monitored value that this run will not have, or two of one prefix and directory; at a
            save for a file that another `ModelCheckpoint` of the list keeps.
        CheckpointError: a file cannot be written; raised at this callback's next event or at exit.
    """

    def __init__(
        self,
        prefix: str | Callable[[Any], str] = "CKP",
        directory: str | Path | Callable[[Any], str | Path] | None = None,
        config: CheckpointConfig | None = None,
        *,
        monitor: str | None = None,
        mode: str = "auto",
        save_top_k: int = 1,
        save_last: bool = False,
    ) -> None:
        named = isinstance(prefix, str) and prefix and "/" not in prefix
        if not (named or callable(prefix)):
            raise ArgumentError(f"prefix must be a str without '/', or a function, got {prefix!r}")
        if directory is not None and not callable(directory) and not str(directory).strip():
            raise ArgumentError("directory must not be blank")
        if config is not None and not isinstance(config, CheckpointConfig):
            raise ArgumentTypeError(f"config must be a CheckpointConfig, got {config!r}")
        if monitor is None and (mode != "auto" or save_top_k != 1 or save_last):
            raise ArgumentError("mode, save_top_k and save_last go with a monitor, got None")
        if save_last and callable(prefix):
            raise ArgumentError(
                "save_last needs a prefix that is a str: a function names whole files"
            )
        self._prefix, self._directory = prefix, directory
        self._config = CheckpointConfig() if config is None else config
        self._monitor = None if monitor is None else Monitor(monitor)
        self._better = None if monitor is None else Better(monitor, mode)
        self.best: float | None = None
        self._top_k, self._last = count("save_top_k", save_top_k, 0), flag("save_last", save_last)
        self._clear()

    @property
    def needs(self) -> Mapping[str, int]:  # type: ignore[override]  # follows from the config
        """The network, whenever the schedule saves it."""
        steps = 0 if self._monitor else self._config.save_checkpoint_steps
        return {"train_network": steps} if steps else {}

    @property
    def latest_ckpt_file_name(self) -> str:
        """The newest file that is safe."""
        return self._broken.latest or self._files.latest

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for files in (self._files, self._lasts, self._broken):
            with said(error):
                files.settle(wait=True)

    def on_train_begin(self, run_context: RunContext) -> None:
        """Settle folder and prefix of this run."""
        cb_params = run_context.original_args()
        if self._monitor is not None:
            self._monitor.begin(cb_params)
        self._clear()
        self._saved_at = run_context.now()
        if isinstance(self._prefix, str) and not callable(self._directory):
            self._name = free_prefix(self._folder(cb_params), self._prefix)
            self._claim(cb_params)

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Save when it is time."""
        if self._monitor is not None:
            return
        self._files.settle(wait=False)
        config, step = self._config, run_context.original_args().cur_step_num
        if config.save_checkpoint_steps:
            due = step >= self._saved_step + config.save_checkpoint_steps
        else:
            due = run_context.now() - self._saved_at >= config.save_checkpoint_seconds
        if due:
            self._save(run_context, self._files)

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """Save when the monitored value is among the best."""
        if self._monitor is None or self._better is None:
            return
        cb_params = run_context.original_args()
        if self._last and cb_params.cur_step_num:
            self._save(run_context, self._lasts, name=f"{self._name}-last")
        value = self._monitor.value(cb_params)
        if value is None:
            return
        self._files.settle(wait=True)
        if self._better(value, self.best):
            self.best = value
        if not self._top_k or self._better(value, self._files.worst()):
            self._save(run_context, self._files, value=value)

    def on_train_end(self, run_context: RunContext) -> None:
        """Save the last step of a schedule, if it is not saved."""
        self._files.settle(wait=True)
        step = run_context.original_args().cur_step_num
        if self._monitor is None and step and step != self._saved_step:
            self._save(run_context, self._files)

    def on_exception(self, run_context: RunContext, error: BaseException) -> None:
        """Save where the run has failed, if the config says so."""
        cb_params = run_context.original_args()
        if self._config.exception_save and cb_params.get("cur_step_num"):
            self._save(run_context, self._broken, ending="_breakpoint")

    def state_dict(self) -> dict[str, Any]:
        """Which files there are, when the last was saved, and the best value."""
        files = {"files": self._files.state_dict(), "lasts": self._lasts.state_dict()}
        when = {"step": self._saved_step, "at": self._saved_at}
        return {"name": self._name, "best": self.best, **files, **when}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with those."""
        self._name, self.best = state["name"], state["best"]
        self._saved_step, self._saved_at = state["step"], state["at"]
        self._files.load_state_dict(state["files"])
        self._lasts.load_state_dict(state["lasts"])

    def resume_points(self, latest: bool) -> list[Path]:
        """Those of the prefix, for `resume="latest"`; unknown where functions name the files."""
        if not latest or callable(self._prefix) or callable(self._directory):
            return []
        folder = Path.cwd() if self._directory is None else Path(self._directory)
        return resumable(folder, self._prefix)

    def _clear(self) -> None:
        best_of = None if self._monitor is None else self._top_k
        smaller = self._better is not None and self._better(0.0, 1.0)
        self._files = Files(self._config, best_of, smaller)
        self._lasts = Files(self._config, 1, smaller)
        self._broken = Files(self._config, 0, smaller)  # on an exception: no other file goes for it
        self._name = self._prefix if isinstance(self._prefix, str) else ""
        self._saved_step, self._saved_at, self.best = 0, 0.0, None

    def _folder(self, cb_params: CallbackParams) -> Path:
        directory = self._directory
        if callable(directory):
            directory = directory(cb_params)
        return (Path.cwd() if directory is None else Path(directory)).absolute()

    def _claim(self, cb_params: CallbackParams) -> None:
        """Two of one prefix and folder would take each other's files."""
        claimed = f"{self._folder(cb_params)}/{self._name}"
        others = list(cb_params.get("checkpoint_prefixes", ()))
        if claimed in others:
            raise ArgumentError(f"two ModelCheckpoints save as {claimed}; give them two prefixes")
        cb_params.checkpoint_prefixes = [*others, claimed]

    def _refuse_taken(self, cb_params: CallbackParams, path: Path) -> None:
        """Functions may give two of them one name, which is only seen here."""
        listed = [one for one in cb_params.list_callback if isinstance(one, ModelCheckpoint)]
        others = [one for one in listed if one._files is not self._files]
        if any(path in files for one in others for files in (one._files, one._lasts, one._broken)):
            raise ArgumentError(f"two ModelCheckpoints save as '{path}'; let them give two names")

    def _save(
        self,
        run_context: RunContext,
        files: Files,
        *,
        name: str = "",
        ending: str = "",
        value: float | None = None,
    ) -> None:
        cb_params, config = run_context.original_args(), self._config
        epoch, step = cb_params.cur_epoch_num, cb_params.cur_step_num
        if callable(self._prefix):
            name = f"{self._prefix(cb_params)}{ending}"
        name = name or f"{self._name}-{epoch}_{cb_params.cur_batch_num}{ending}"
        path = self._folder(cb_params) / f"{name}.{config.format}"
        self._refuse_taken(cb_params, path)
        files.settle(wait=True)
        done = run_context.save_checkpoint(
            path,
            format=config.format,
            notes=config.notes(epoch, step),
            wait=not config.async_save,
        )
        self._saved_step, self._saved_at = step, run_context.now()
        files.add(Saved(str(path), self._saved_at, value), done)

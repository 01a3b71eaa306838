"""Everything Railbus raises on purpose.

RailbusError
├── SnapshotError       (ValueError)      a value or bytes that msgpack snapshots cannot carry
├── ParamError          (AttributeError)  a wrong access to cb_params
│   ├── ReadOnlyParam                     an assignment to a value that callbacks may not write
│   └── NotTraced                         an assignment to a hyperparameter the program does not read
├── CallbackTypeError   (TypeError)       something in the callback list is not a callback
├── ArgumentError       (ValueError)      an argument that cannot work, found before anything runs
├── ArgumentTypeError   (TypeError)       an argument of the wrong type, found before anything runs
├── DatasetError        (ValueError)      a dataset that yields what cannot be trained on
├── CheckpointError     (ValueError)      a checkpoint that cannot be read or does not fit
├── RecordingError      (ValueError)      a recording that is damaged, or cannot be made or read
├── StateGone           (RuntimeError)    the state of a step that `exact=False` has not kept
├── DeadlineExceeded    (TimeoutError)    a participant did not ack within its deadline
├── ObserverError       (RuntimeError)    an observer asks for what only participants can do
├── NotRecorded         (LookupError)     a replayed callback asks for what a recording does not hold
├── StreamGap           (LookupError)     events are missing in a stream that is replayed
├── RecordedFailure     (RuntimeError)    what a recorded run failed with, for `on_exception`
├── RemoteFailure       (RuntimeError)    what a participant elsewhere has raised in its hook
├── FrameError          (ValueError)      bytes from a peer that are no frame, or not one of its turn
├── RemoteError         (ConnectionError) a service that refuses, or cannot be reached
└── BusClosed           (RuntimeError)    a call on a run or bus that has ended
"""


def told(error: BaseException) -> str:
    """An exception as text that every snapshot can carry, whatever bytes a path in it has."""
    kind = "" if isinstance(error, RemoteFailure) else f"{type(error).__name__}: "
    return f"{kind}{error}".encode(errors="backslashreplace").decode()


class RailbusError(Exception):
    """The root of the tree; carries where in a run it arose, as far as that is known.

    `run_id`, `event` (for example `"on_train_step_end #17"`) and `subscriber` are None outside a run.
    """

    def __init__(
        self,
        message: str,
        *,
        run_id: str | None = None,
        event: str | None = None,
        subscriber: str | None = None,
    ) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.event = event
        self.subscriber = subscriber

    def __str__(self) -> str:
        message = super().__str__()
        parts = (("run", self.run_id), ("event", self.event), ("subscriber", self.subscriber))
        where = ", ".join(f"{name} {value}" for name, value in parts if value is not None)
        return f"{message} [{where}]" if where else message


class SnapshotError(RailbusError, ValueError):
    """Raised when a value cannot be packed into a snapshot, or bytes are not a valid one."""


class ParamError(RailbusError, AttributeError):
    """Raised on a wrong access to `cb_params`."""


class ReadOnlyParam(ParamError):
    """Raised at an assignment to a counter, an output or a fact of the run."""


class NotTraced(ParamError):
    """Raised at an assignment to a hyperparameter that the compiled step does not read."""


class CallbackTypeError(RailbusError, TypeError):
    """Raised when the callback list holds something that is not a `Callback`."""


class ArgumentError(RailbusError, ValueError):
    """Raised at the call for an argument whose value cannot work."""


class ArgumentTypeError(RailbusError, TypeError):
    """Raised at the call for an argument of the wrong type."""


class DatasetError(RailbusError, ValueError):
    """Raised when a dataset is empty or yields what the program cannot take."""


class CheckpointError(RailbusError, ValueError):
    """Raised when a checkpoint cannot be read or does not fit the network."""


class RecordingError(RailbusError, ValueError):
    """Raised where a recording is damaged, is none, or cannot be made."""


class StateGone(RailbusError, RuntimeError):
    """Raised for the state after a step that a run with `exact=False` has overwritten."""


class DeadlineExceeded(RailbusError, TimeoutError):
    """Raised when a participant with policy `raise` missed its deadline (C7)."""


class ObserverError(RailbusError, RuntimeError):
    """Raised when an observer tries to stop a run: what it sees has happened already."""


class NotRecorded(RailbusError, LookupError):
    """Raised in a replay for what the recording does not hold; no AttributeError, see `getattr`."""


class StreamGap(RailbusError, LookupError):
    """Raised when a stream misses events that a replayed callback would have got."""


class RecordedFailure(RailbusError, RuntimeError):
    """Stands in a replay for the exception that the recorded run failed with."""


class RemoteFailure(RailbusError, RuntimeError):
    """Stands for the exception in a hook of a participant in another process."""


class FrameError(RailbusError, ValueError):
    """Raised for bytes from a peer that are not a frame of the protocol; `code` says which rule."""

    def __init__(self, message: str, code: str = "bad_frame") -> None:
        super().__init__(message)
        self.code = code


class RemoteError(RailbusError, ConnectionError):
    """Raised when a service refuses or cannot be reached; `code` is one of `schemas.frames.Code`."""

    def __init__(self, message: str, code: str, *, run_id: str | None = None) -> None:
        super().__init__(message, run_id=run_id)
        self.code = code


class BusClosed(RailbusError, RuntimeError):
    """Raised on a call that needs a run which has ended."""

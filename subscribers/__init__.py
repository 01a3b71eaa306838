"""Callbacks: what users subclass, those that are built in, the workers that run them; replay."""

from .backup_and_restore import BackupAndRestore as BackupAndRestore
from .callback import Callback as Callback, callback_list as callback_list
from .checkpoint_config import CheckpointConfig as CheckpointConfig
from .checkpoints import checkpoints as checkpoints
from .context import RunContext as RunContext
from .csv_logger import CSVLogger as CSVLogger
from .device_monitor import DeviceMonitor as DeviceMonitor
from .difference import Difference as Difference, acks_of as acks_of, diff as diff
from .early_stopping import EarlyStopping as EarlyStopping
from .ema_weights import EMAWeights as EMAWeights
from .export import export as export
from .filters import between as between, every as every, once as once, when as when
from .flops_utilization_collector import FlopsUtilizationCollector as FlopsUtilizationCollector
from .history import History as History
from .json_logger import JSONLogger as JSONLogger
from .lambda_callback import LambdaCallback as LambdaCallback
from .learning_rate_monitor import LearningRateMonitor as LearningRateMonitor
from .learning_rate_scheduler import LearningRateScheduler as LearningRateScheduler
from .loss_monitor import LossMonitor as LossMonitor
from .mlflow_tracker import MLflowTracker as MLflowTracker
from .model_checkpoint import ModelCheckpoint as ModelCheckpoint
from .on_request_exit import OnRequestExit as OnRequestExit
from .profiler import Profiler as Profiler
from .progress_bar import ProgressBar as ProgressBar
from .prometheus import Prometheus as Prometheus
from .recorder import Recorder as Recorder
from .reduce_lr_on_plateau import ReduceLROnPlateau as ReduceLROnPlateau
from .remote import Remote as Remote
from .replay import replay as replay
from .replayed import Patched as Patched, Replayed as Replayed
from .roster import Roster as Roster
from .stop_at_step import StopAtStep as StopAtStep
from .stop_at_time import StopAtTime as StopAtTime
from .summary_collector import SummaryCollector as SummaryCollector
from .synthesize import synthesize as synthesize
from .tensorboard import TensorBoard as TensorBoard
from .terminate_on_nan import TerminateOnNaN as TerminateOnNaN
from .threshold import Threshold as Threshold
from .throughput_monitor import ThroughputMonitor as ThroughputMonitor
from .time_monitor import TimeMonitor as TimeMonitor
from .tracker import Tracker as Tracker, Tracking as Tracking
from .wandb_tracker import WandbTracker as WandbTracker
from .webhook import Webhook as Webhook

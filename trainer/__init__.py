"""The trainer: compiled steps whose events go onto the bus."""

from .arrays import ArrayDataset as ArrayDataset
from .checkpoint import load_checkpoint as load_checkpoint, save_checkpoint as save_checkpoint
from .result import RunResult as RunResult, RunStats as RunStats, Status as Status
from .run import Run as Run
from .runahead import RunAhead as RunAhead
from .trainer import Trainer as Trainer

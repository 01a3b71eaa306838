"""From a run's arguments to its pipeline: where the data lies, in which form and how far ahead."""

import logging
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from railbus.schemas.hooks import Mode
from railbus.schemas.lifecycle import Plan

from .arguments import Arguments
from .arrays import as_array, is_plain
from .batches import BatchSource
from .blocks import Runner, choose
from .pipeline import Pipeline
from .program import Carry, Program, TrainState
from .result import RunStats
from .runahead import Pace, RunAhead
from .tree import bytes_of

logger = logging.getLogger(__name__)


def sources_of(
    arguments: Arguments, settings: RunAhead, epochs: Mapping[Mode, int]
) -> tuple[dict[Mode, BatchSource], dict[Mode, Any]]:
    """The datasets as the run reads them, and the arrays of those that go onto the device whole.

    Args:
        epochs: where a resumed run was in each `ArrayDataset`.
    """
    given: dict[Mode, tuple[Any, str, bool]] = {}
    if arguments.kind != "eval":
        given["train"] = arguments.train_dataset, "train_dataset", arguments.sinking
    if arguments.validates or arguments.kind == "eval":
        given["eval"] = arguments.valid_dataset, "valid_dataset", arguments.valid_sinking
    sources: dict[Mode, BatchSource] = {}
    arrays: dict[Mode, Any] = {}
    for mode, (dataset, name, sinking) in given.items():
        sinks = sinking and _fits(dataset, name, settings)
        if sinks:
            arrays[mode] = tuple(map(jnp.asarray, dataset.arrays))
        sources[mode] = BatchSource(dataset, name, picked=sinks)
        sources[mode].resume(epochs.get(mode))
    return sources, arrays


def _fits(dataset: Any, name: str, settings: RunAhead) -> bool:
    """Whether a dataset can lie on the device; says so where it cannot."""
    why = None
    if not is_plain(dataset):
        why = "it is no ArrayDataset, or one that has its own way of giving batches"
    elif sum(array.nbytes for array in dataset.arrays) > settings.bytes:
        why = f"it is larger than the {settings.bytes} bytes of RunAhead(memory=...)"
    if why is not None:
        logger.info("%s stays on the host in spite of dataset_sink_mode: %s", name, why)
    return why is None


def pipeline_of(
    program: Program,
    settings: RunAhead,
    plan: Plan,
    sources: Mapping[Mode, BatchSource],
    arrays: Mapping[Mode, Any],
    state: TrainState,
    stats: RunStats,
) -> Pipeline:
    """The pipeline of a run; notes in `stats` in which form it gives its blocks to the device.

    Raises:
        ArgumentError: settings that this program cannot meet.
    """
    batches = {mode: source.peek() for mode, source in sources.items()}
    form = choose(settings.fuse, program, Carry(state), batches, arrays)
    stats.fused, stats.form, stats.exact = form.fused, form.reason, settings.exact
    runner = Runner(program, form.fused, arrays, donate=not settings.exact)
    if runner.donate:
        state = jax.tree.map(jnp.copy, state)
    batch_bytes = max(sum(map(_bytes, batch)) for batch in batches.values())
    if form.alone:
        settings = RunAhead(block_steps=1, ahead=0, memory=settings.memory, exact=settings.exact)
    pace = Pace(settings, bytes_of(state), batch_bytes)
    done = 0
    if plan.resumed is not None:
        done = plan.resumed.step
        sources["train"].skip(plan.resumed.batches or 0)
    return Pipeline(runner, sources, plan.passes(), pace, state, stats, done)


def _bytes(leaf: Any) -> int:
    return int(as_array(leaf).nbytes)

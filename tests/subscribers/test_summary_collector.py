"""`SummaryCollector`, read back with TensorBoard's own reader, and MindSpore's defects."""

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest
from flax import nnx
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from railbus.subscribers import Callback, SummaryCollector
from railbus.trainer import Trainer

DATA = [(np.full((2, 1), k, np.float32), np.zeros((2, 1), np.float32)) for k in range(4)]


class Net(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.one, self.two = nnx.Linear(1, 3, rngs=rngs), nnx.Linear(3, 3, rngs=rngs)
        self.three = nnx.Linear(3, 1, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.three(self.two(self.one(x)))


def make_trainer() -> Trainer:
    optimizer = optax.inject_hyperparams(optax.sgd)(learning_rate=0.01)
    return Trainer(Net(), lambda out, y: ((out - y) ** 2).mean(), optimizer, {"mse"})


def read(path: Path) -> EventAccumulator:
    sizes = {"tensors": 0, "scalars": 0, "histograms": 0}
    return EventAccumulator(str(path), size_guidance=sizes).Reload()


def text(reader: EventAccumulator, tag: str) -> str:
    [entry] = reader.Tensors(f"{tag}/text_summary")
    return str(entry.tensor_proto.string_val[0].decode())


def test_a_run_is_collected_with_the_defaults(tmp_path):
    collector = SummaryCollector(tmp_path, 3, collect_tensor_freq=4)
    result = make_trainer().fit(2, DATA, DATA, callbacks=collector, run_id="mine")

    reader = read(tmp_path)
    tags = reader.Tags()
    assert set(tags["scalars"]) == {
        "loss/auto", "learning_rate/auto", "mse/auto", "eval_loss/auto"
    }  # fmt: skip
    assert [one.step for one in reader.Scalars("loss/auto")] == [1, 3, 6]
    assert [one.step for one in reader.Scalars("mse/auto")] == [4, 8]
    assert sorted(tags["histograms"]) == [
        f"{layer}.{name}/auto"
        for layer, name in [("one", "bias"), ("one", "kernel"), ("three", "bias"),
                            ("three", "kernel"), ("two", "bias")]
    ]  # fmt: skip
    assert [one.step for one in reader.Histograms("one.kernel/auto")] == [4, 8]
    lineage = json.loads(text(reader, "train_lineage"))
    assert lineage["network"] == "Net" and lineage["status"] == "completed"
    assert (lineage["run_id"], lineage["steps"]) == ("mine", 8)
    assert json.loads(text(reader, "eval_lineage"))["mse"] == result.metrics["mse"]
    assert text(reader, "input_data/auto") == "float32[2, 1], float32[2, 1]"
    assert "stablehlo.dot_general" in text(reader, "train_network/auto")
    assert json.loads(text(reader, "hyperparameters")) == {"learning_rate": pytest.approx(0.01)}


def test_only_what_is_named_is_collected_without_the_default_action(tmp_path):
    collector = SummaryCollector(
        tmp_path,
        collect_specified_data={"histogram_regular": "o.*kernel", "collect_metric": False},
        keep_default_action=False,
        custom_lineage_data={"version": "2", "seed": 3},
        collect_tensor_freq=8,
    )
    make_trainer().fit(2, DATA, DATA, callbacks=collector)

    tags = read(tmp_path).Tags()
    assert tags["scalars"] == []
    assert tags["histograms"] == ["one.kernel/auto"]
    assert tags["tensors"] == ["custom_lineage_data/text_summary"]
    assert json.loads(text(read(tmp_path), "custom_lineage_data")) == {"version": "2", "seed": 3}


def test_by_default_at_most_twenty_steps_have_histograms(tmp_path):
    make_trainer().train(150, DATA, SummaryCollector(tmp_path, collect_freq=1))

    steps = [one.step for one in read(tmp_path).Histograms("one.kernel/auto")]
    assert steps == list(range(30, 601, 30))


def test_a_histogram_is_that_of_its_step(tmp_path):
    kernels = {}

    class Keeps(Callback):
        def on_train_step_end(self, run_context) -> None:
            cb_params = run_context.original_args()
            params = cb_params.train_network.params
            kernels[cb_params.cur_step_num] = np.asarray(params["two"]["kernel"])

    collector = SummaryCollector(tmp_path, collect_tensor_freq=3,
        collect_specified_data={"histogram_regular": "two"})  # fmt: skip
    make_trainer().train(2, DATA, [collector, Keeps()])

    found = {one.step: one.histogram_value for one in read(tmp_path).Histograms("two.kernel/auto")}
    assert list(found) == [3, 6]
    for step, histogram in found.items():
        assert histogram.num == 9
        assert histogram.min == kernels[step].min() and histogram.max == kernels[step].max()


def test_two_collectors_run_in_one_process_where_mindspores_raises(tmp_path):
    """MindSpore's second one raises RuntimeError, and its writer process outlives a failed start."""
    before = threading.active_count()
    collectors = [SummaryCollector(tmp_path / name) for name in ("a", "b")]
    make_trainer().train(1, DATA, collectors)

    for name in ("a", "b"):
        assert [one.step for one in read(tmp_path / name).Scalars("loss/auto")] == [1]
    assert threading.active_count() == before


def test_no_checkpoint_is_written_where_mindspores_writes_nineteen(tmp_path):
    make_trainer().train(5, DATA, SummaryCollector(tmp_path))

    assert [path.is_file() for path in tmp_path.iterdir()] == [True]


def test_a_full_file_takes_no_more_and_says_so_once(tmp_path, caplog):
    collector = SummaryCollector(
        tmp_path, 1, collect_specified_data={"collect_graph": False}, max_file_size=1000
    )
    make_trainer().train(10, DATA, collector)

    [path] = tmp_path.iterdir()
    assert 800 < path.stat().st_size <= 1000 + 100
    assert [record.getMessage() for record in caplog.records] == [
        "max_file_size=1000 is reached, no more is written"
    ]


def test_lineage_is_json_where_a_value_is_no_number(tmp_path):
    collector = SummaryCollector(tmp_path, custom_lineage_data={"best": float("nan")})
    make_trainer().fit(1, DATA, DATA, callbacks=collector)

    assert json.loads(text(read(tmp_path), "custom_lineage_data")) == {"best": "NaN"}


def test_a_failed_run_has_its_lineage(tmp_path):
    class Fails(Callback):
        def on_train_step_begin(self, run_context) -> None:
            raise ValueError("bad luck")

    with pytest.raises(ValueError, match="bad luck"):
        make_trainer().train(1, DATA, [SummaryCollector(tmp_path), Fails()])

    lineage = json.loads(text(read(tmp_path), "train_lineage"))
    assert (lineage["status"], lineage["stop_reason"]) == ("failed", "ValueError: bad luck")


@pytest.mark.parametrize(
    "arguments",
    [
        {"summary_dir": 3},
        {"collect_freq": 0},
        {"collect_freq": 1.0},
        {"num_process": 0},
        {"collect_specified_data": ["collect_metric"]},
        {"collect_specified_data": {"collect_metrics": True}},
        {"collect_specified_data": {"collect_metric": 1}},
        {"collect_specified_data": {"histogram_regular": 1}},
        {"collect_specified_data": {"histogram_regular": "("}},
        {"collect_specified_data": {"collect_landscape": {"landscape_size": 4}}},
        {"keep_default_action": 1},
        {"custom_lineage_data": {"a": [1]}},
        {"collect_tensor_freq": 0},
        {"max_file_size": 0},
        {"export_options": {"tensor_format": "npy"}},
        {"unknown": 1},
    ],
)
def test_the_constructor_refuses_what_cannot_work(arguments):
    with pytest.raises((TypeError, ValueError)):
        SummaryCollector(**{"summary_dir": "runs", **arguments})

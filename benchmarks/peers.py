"""Keras 3 on JAX with the same networks, where it is installed (`pip install 'keras>=3'`)."""

import os
from typing import Any

from networks import BATCH, CLASSES, CNN, LARGE, SMALL, Case
from timing import Candidate, timed

from railbus.trainer import ArrayDataset

MISSING = "Keras is not here: pip install 'railbus[peers]', or pip install 'keras>=3'"


def keras() -> Any:
    """The package, on JAX.

    Raises:
        ImportError: it is not installed, or runs on another backend already.
    """
    os.environ["KERAS_BACKEND"] = "jax"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        import keras as package
    except ImportError as error:
        raise ImportError(MISSING) from error
    if package.backend.backend() != "jax":
        raise ImportError(f"Keras runs on {package.backend.backend()}, expected jax")
    return package


def _layers(name: str, layers: Any) -> list[Any]:
    if name == CNN:
        return [
            *(layers.Conv2D(8, 3, padding="same"), layers.BatchNormalization()),
            *(layers.ReLU(), layers.MaxPooling2D(2)),
            *(layers.Conv2D(16, 3, padding="same"), layers.BatchNormalization()),
            *(layers.ReLU(), layers.MaxPooling2D(2)),
            *(layers.Flatten(), layers.Dropout(0.5), layers.Dense(CLASSES)),
        ]
    widths = {SMALL: (32, 32), LARGE: (512, 512)}[name]
    return [*(layers.Dense(width, activation="relu") for width in widths), layers.Dense(CLASSES)]


class Fit:
    """`model.fit` with three callbacks that read the loss whenever Keras calls them.

    Attributes:
        calls: how often one callback was called in the last run, of how many steps.
    """

    def __init__(self, case: Case, data: ArrayDataset, steps_per_execution: int) -> None:
        package = keras()
        self._case, self._data, self.calls = case, data, 0
        layers = [package.Input(case.shape), *_layers(case.name, package.layers)]
        self._model = package.Sequential(layers)
        self._model.compile(
            optimizer=package.optimizers.SGD(1e-2),
            loss=package.losses.SparseCategoricalCrossentropy(from_logits=True),
            steps_per_execution=steps_per_execution,
        )
        fit = self

        class ReadLoss(package.callbacks.Callback):  # type: ignore[misc,name-defined]
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                self.loss = float(logs["loss"])
                fit.calls += 1

        self._kind = ReadLoss

    @property
    def steps(self) -> int:
        """Of a run."""
        return self._case.few * self._case.steps

    def seconds(self) -> float:
        """Seconds per step of one run."""
        self.calls = 0
        callbacks = [self._kind() for _ in range(3)]
        seconds = timed(lambda: self._fit(callbacks)) / self.steps
        self.calls //= len(callbacks)
        return seconds

    def _fit(self, callbacks: list[Any]) -> None:
        inputs, labels = self._data.arrays
        self._model.fit(
            inputs,
            labels,
            batch_size=BATCH,
            epochs=self._case.few,
            shuffle=False,
            verbose=0,
            callbacks=callbacks,
        )


def candidates(case: Case, data: ArrayDataset) -> dict[str, tuple[Fit, Candidate]]:
    """Keras in both settings, by name."""
    found = {}
    for count in (1, 64):
        fit = Fit(case, data, count)
        found[f"Keras, steps_per_execution={count}"] = fit, fit.seconds
    return found

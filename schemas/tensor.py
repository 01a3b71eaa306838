"""`Tensor`: the array type of `cb_params`."""

from typing import Any, Self

import numpy as np


class Tensor(np.ndarray[Any, Any]):
    """A read-only numpy array with MindSpore's `asnumpy()`."""

    @classmethod
    def of(cls, array: Any) -> Self:
        """A read-only view of `array` (anything numpy takes)."""
        tensor = np.asarray(array).view(cls)
        tensor.flags.writeable = False
        return tensor

    def asnumpy(self) -> np.ndarray[Any, Any]:
        """The values as a plain, read-only numpy array."""
        return self.view(np.ndarray)

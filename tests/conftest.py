"""What every test stands on: strict JAX, both event loops, one hypothesis profile."""

import os

# JAX reads these when it is first imported, and most tests never import it.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUMPY_DTYPE_PROMOTION", "strict")
os.environ.setdefault("JAX_NUMPY_RANK_PROMOTION", "raise")

import hypothesis
import pytest

hypothesis.settings.register_profile(
    "railbus", deadline=None, derandomize="CI" in os.environ, print_blob=True
)
hypothesis.settings.register_profile(
    "soak", hypothesis.settings.get_profile("railbus"), max_examples=20_000, derandomize=False
)
hypothesis.settings.load_profile("railbus")


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Every async test runs on both; anyio's default would drop one that is not installed."""
    backend: str = request.param
    return backend

"""Four folders at the root are one import name, and three of them work without JAX."""

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("trainer", "bus", "subscribers", "schemas")


def test_the_package_tables_name_every_package_there_is() -> None:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = {
        "railbus." + ".".join(init.parent.relative_to(ROOT).parts)
        for folder in FOLDERS
        for init in (ROOT / folder).rglob("__init__.py")
    }

    assert set(table["packages"]) == found == set(table["package-dir"])


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_at_the_root_imports_under_railbus(folder: str) -> None:
    package = importlib.import_module(f"railbus.{folder}")

    assert package.__file__ is not None
    assert Path(package.__file__).resolve() == ROOT / folder / "__init__.py"


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_package_carries_its_types(folder: str) -> None:
    link = ROOT / ".typing" / "railbus" / folder

    assert (ROOT / folder / "py.typed").is_file()
    assert link.is_symlink()
    assert link.resolve() == ROOT / folder


def test_schemas_bus_and_subscribers_import_without_jax() -> None:
    code = (
        "import sys, railbus.schemas, railbus.bus, railbus.subscribers\n"
        "print(*sorted({'jax', 'jaxlib', 'flax', 'optax', 'orbax'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True
    )

    assert done.stdout.split() == []


def test_every_constraint_is_a_plain_pin() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]

    assert pins
    for pin in pins:
        assert pin.count("==") == 1
        assert "/" not in pin and "@" not in pin

"""C9: what is recovered after any crash is an exact prefix; what is missing, the policy bounds."""

import os
import random
from pathlib import Path

import pytest

from railbus.bus import Recording, recover
from railbus.schemas.errors import RailbusError
from tests.bus.recorded import ABOUT, NOTES, entries, readable, sample, soaking, write

from .killed import POLICIES, Killer

TRAINING = str(Path(__file__).with_name("killed_training.py"))

FORMS = [(False, ()), (True, ()), (True, (6,))]
KILLS = 500 if soaking() else 25


@pytest.fixture(params=FORMS, ids=["unsealed", "sealed", "two files"])
def recording(request, tmp_path) -> Recording:
    sealed, rotate = request.param
    return Recording(write(tmp_path, sample(), sealed=sealed, rotate=rotate))


def check(path: Path) -> None:
    """Nothing that can be read differs from what was written."""
    try:
        recording = Recording(path)
    except RailbusError:
        return
    assert recording.about == ABOUT
    assert recording.notes.items() <= NOTES.items()
    found, error = readable(recording)
    assert found == entries(sample())[: len(found)]
    assert error is None or isinstance(error, RailbusError)


def sound(path: Path) -> None:
    """What `verify` finds nothing wrong with is all there, as far as it was closed."""
    try:
        report = Recording(path).verify()
    except RailbusError:
        return
    whole = [one for one in entries(sample()) if one is not None]
    assert not report.sealed or report.events + report.gaps == len(whole)


def repaired(path: Path, kept: Path, original: bytes) -> None:
    """`recover` makes a sealed prefix of it, once, and keeps the original."""
    before, _ = readable_at(path)
    done = recover(path)
    left = sorted(one.name for one in kept.parent.iterdir())

    assert recover(path) == []
    assert sorted(one.name for one in kept.parent.iterdir()) == left
    for one in done:
        assert one.path != kept or one.torn.read_bytes() == original
        assert one.path.exists() == (one.events > 0)
    after, error = readable_at(path)
    assert after == before and error is None
    assert not after or Recording(path).verify().sealed


def readable_at(path: Path):
    try:
        return readable(Recording(path))
    except RailbusError:
        return [], None


def test_a_file_cut_at_any_byte_gives_a_prefix_or_a_typed_error(recording):
    path = recording.files[-1]
    for size in range(path.stat().st_size - 1, -1, -1):
        os.truncate(path, size)
        check(recording.path)


def test_a_first_file_cut_at_any_byte_never_lets_the_second_pass_for_its_end(tmp_path):
    first = Recording(write(tmp_path, sample(), rotate=(6,))).files[0]
    whole = entries(sample())[:7]
    for size in range(first.stat().st_size - 1, -1, -3):
        os.truncate(first, size)
        found, _ = readable_at(tmp_path)
        assert found == whole[: len(found)] or found == entries(sample())
        check(tmp_path)


def flips(path: Path, bits: int, stride: int = 1):
    """Each byte of a file with each of so many bits flipped, in place, one after another."""
    data = path.read_bytes()
    with path.open("r+b", buffering=0) as file:
        for at in range(0, len(data), stride):
            for number in range(bits):
                os.pwrite(file.fileno(), bytes([data[at] ^ 1 << (at + 3 * number) % 8]), at)
                yield at
            os.pwrite(file.fileno(), data[at : at + 1], at)


def test_a_flip_in_any_byte_gives_a_prefix_or_a_typed_error(recording):
    bits = 8 if soaking() else 3 if len(recording.files) == 1 else 1
    for _ in flips(recording.files[-1], bits):
        check(recording.path)


def test_verify_finds_a_flip_in_any_byte_that_matters(recording):
    for _ in flips(recording.files[0], 8 if soaking() else 1, 1 if soaking() else 5):
        sound(recording.path)


@pytest.mark.parametrize("form", FORMS)
def test_recovering_what_was_cut_twice_is_once_and_gives_its_prefix(form, tmp_path):
    rng = random.Random(1)
    for number in range(1000 if soaking() else 40):
        folder = write(tmp_path / str(number), sample(), sealed=form[0], rotate=form[1])
        path = rng.choice(Recording(folder).files)
        os.truncate(path, rng.randrange(path.stat().st_size))
        repaired(folder, path, path.read_bytes())


@pytest.mark.parametrize("form", FORMS)
def test_recovering_what_was_flipped_twice_is_once_and_gives_its_prefix(form, tmp_path):
    rng = random.Random(2)
    for number in range(1000 if soaking() else 40):
        folder = write(tmp_path / str(number), sample(), sealed=form[0], rotate=form[1])
        path = rng.choice(Recording(folder).files)
        data = bytearray(path.read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        repaired(folder, path, bytes(data))


def survives(killer: Killer, flush: str, number: int, longest: float) -> int:
    """Kill one run; returns how many events it had written."""
    killed = killer.kill(number, longest)

    assert killed.error is None
    assert killed.read == killed.seen[: len(killed.read)]
    lost, seconds = killed.lost
    assert POLICIES[flush](lost, seconds)
    assert killed.recovered == killed.read
    return len(killed.read)


@pytest.mark.parametrize("flush", POLICIES)
def test_a_killed_run_leaves_an_exact_prefix_and_loses_no_more_than_its_policy_allows(
    flush, tmp_path
):
    with Killer(tmp_path, flush) as killer:
        written = [survives(killer, flush, number, 0.25) for number in range(KILLS)]

    assert max(written) > 64


@pytest.mark.parametrize("flush", POLICIES)
def test_a_killed_training_leaves_an_exact_prefix_too(flush, tmp_path):
    with Killer(tmp_path, flush, TRAINING) as killer:
        written = [survives(killer, flush, number, 1.5) for number in range(KILLS // 8)]

    assert max(written) > 0

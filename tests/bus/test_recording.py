"""Reading recordings: places, hooks, files that are none, runs that are still being written."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from mcap.writer import Writer

from railbus.bus import Recording, recover
from railbus.bus.segment import SegmentWriter
from railbus.bus.tape import Tape
from railbus.schemas import Gap, Hook, Plan
from railbus.schemas.errors import ArgumentError, RecordingError
from railbus.schemas.events import Committed
from tests.semantics.synthetic import play

from .recorded import ABOUT, LINE, NOTES, at, entries, entry, sample, soaking, write

TRAIN = (Hook.TRAIN_STEP_BEGIN, Hook.TRAIN_STEP_END)


def test_a_recording_gives_back_what_was_committed(tmp_path):
    recording = Recording(write(tmp_path, sample()))

    assert list(recording) == list(recording) == entries(sample())
    assert list(recording.log()) == [LINE]
    assert (recording.about, recording.notes) == (ABOUT, NOTES)
    report = recording.verify()
    assert (report.events, report.gaps, report.sealed, report.ended) == (14, 1, True, True)


@st.composite
def streams(draw):
    """Entries with validations, epochs, times that stand still, gaps; and where files end."""
    items: list[Committed | Gap] = []
    seq, step, epoch, time_ns = 0, 0, 0, 0
    for kind in draw(st.lists(st.sampled_from("sssveegg"), min_size=1, max_size=25)):
        time_ns += draw(st.sampled_from([0, 0, 1, 10**9]))
        if kind == "g":
            items.append(Gap(run_id="run", first=seq, last=seq + 2, reason="slow"))
            seq += 3
            continue
        epoch += kind == "e"
        step += kind == "s"
        hooks = {"s": TRAIN, "e": (Hook.TRAIN_EPOCH_BEGIN,)}.get(kind, (Hook.EVAL_STEP_END,) * 4)
        for number, hook in enumerate(hooks):
            shown = step if hook.mode == "train" else number + 1
            items.append(entry(seq, hook, step=shown, epoch=epoch, time_ns=time_ns))
            seq += 1
    ends = draw(st.sets(st.integers(0, seq), max_size=4))
    return items, ends


def reached(item, name, value):
    if isinstance(item, Gap):
        return name == "seq" and item.last >= value
    if name == "step":
        return item.event.hook.mode == "train" and item.step >= value
    here = {"seq": item.event.seq, "epoch": item.epoch, "time": item.event.time_ns / 1e9}
    return here[name] >= value


@settings(max_examples=120)
@given(
    streams(),
    st.sampled_from(["seq", "epoch", "step", "time"]),
    st.integers(0, 30),
    st.booleans(),
    st.integers(1, 4),
)
def test_seeking_equals_reading_from_the_beginning(
    tmp_path_factory, stream, name, value, sealed, chunk
):
    items, ends = stream
    tape = Tape(tmp_path_factory.mktemp("seek"), ABOUT, "lifecycle", NOTES)
    for number, item in enumerate(items):
        tape.write(item)
        if isinstance(item, Committed) and item.event.seq in ends:
            tape.seal()
        elif tape._writer is not None and number % chunk == 0:
            tape._writer.flush()
    if sealed:
        tape.seal()
    elif tape._writer is not None:
        tape._writer.flush()
    tape.close()

    found = list(Recording(tape._folder).entries(**at(name, value)))
    wanted = itertools.dropwhile(lambda one: not reached(one, name, value), items)
    assert found == list(wanted)


def test_a_step_before_a_file_that_begins_inside_of_a_validation_is_found(tmp_path):
    items = [
        entry(0, TRAIN[0], step=1, epoch=1),
        entry(1, TRAIN[1], step=1, epoch=1),
        *(entry(seq, Hook.EVAL_STEP_END, step=seq, epoch=1) for seq in (2, 3)),
        entry(4, TRAIN[0], step=2, epoch=2),
    ]
    recording = Recording(write(tmp_path, items, rotate=(2,)))

    assert list(recording.entries(step=1)) == items
    assert list(recording.entries(step=2)) == items[4:]


def test_hooks_choose_events_and_gaps_are_never_left_out(tmp_path):
    recording = Recording(write(tmp_path, sample()))
    wanted = {"on_train_step_end", Hook.EVAL_END}

    found = list(recording.entries(wanted, seq=5))
    assert [str(one.event) for one in found if isinstance(one, Committed)] == [
        "on_train_step_end #5",
        "on_train_step_end #7",
    ]
    assert sum(isinstance(one, Gap) for one in found) == 1


@pytest.mark.parametrize(
    "places",
    [
        {"seq": 1, "step": 1},
        {"seq": -1},
        {"seq": 1.5},
        {"epoch": True},
        {"step": "3"},
        {"time": float("nan")},
        {"time": float("inf")},
        {"hooks": {"on_step"}},
    ],
)
def test_places_that_are_none_are_refused(places, tmp_path):
    recording = Recording(write(tmp_path, sample()))
    with pytest.raises(ArgumentError):
        recording.entries(**places)


def test_places_past_the_end_give_nothing(tmp_path):
    recording = Recording(write(tmp_path, sample()))

    for name in ("seq", "epoch", "step", "time"):
        assert list(recording.entries(**at(name, 10**30))) == []


@pytest.mark.parametrize(
    "item",
    [
        entry(0, step=2**63),
        entry(0, epoch=2**64 - 1),
        entry(0, time_ns=2**63),
        Gap(run_id="run", first=0, last=2**63 - 1, reason="slow"),
    ],
)
def test_numbers_that_no_event_has_are_refused(item, tmp_path):
    recording = Recording(write(tmp_path, [item], sealed=False))

    with pytest.raises(RecordingError, match="no event has|no run has"):
        list(recording)
    with pytest.raises(RecordingError, match="no event has|no run has"):
        list(recording.entries(step=1))
    assert [one.events for one in recover(tmp_path)] == [0]


def foreign(path: Path) -> None:
    with path.open("wb") as file:
        writer = Writer(file)
        writer.start()
        channel = writer.register_channel("/odom", "json", 0)
        writer.add_message(channel, 0, b"{}", 0)
        writer.finish()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "there is no recording"),
        (lambda path: path.mkdir(), "there is no recording"),
        (lambda path: path.write_bytes(b""), "breaks off before"),
        (lambda path: path.write_bytes(b"SQLite format 3\0" * 9), "00000000.mcap' is no MCAP file"),
        (foreign, "does not say which run"),
    ],
)
def test_what_is_no_recording_is_refused(make, words, tmp_path):
    path = tmp_path / "000-00000000.mcap"
    make(path)

    with pytest.raises(RecordingError, match=words):
        list(Recording(path))


def test_a_missing_file_is_noticed_the_first_one_too(tmp_path):
    recording = Recording(write(tmp_path, sample(), rotate=(4, 8)))
    first, second, _ = recording.files

    second.rename(tmp_path / "second")
    with pytest.raises(RecordingError, match="events are missing"):
        list(recording)
    (tmp_path / "second").rename(second)
    first.unlink()
    with pytest.raises(RecordingError, match="expected event #0, got #5"):
        list(Recording(tmp_path))


def test_a_file_of_another_run_is_not_read_on(tmp_path):
    here = Recording(write(tmp_path / "a", sample(), rotate=(4,)))
    other = write(
        tmp_path / "b",
        [entry(5)],
        about=type(ABOUT)(run_id="two", incarnation=0, plan=Plan(mode="eval")),
    )
    here.files[1].write_bytes(Recording(other).files[0].read_bytes())

    with pytest.raises(RecordingError, match="'two'"):
        list(here)


def test_one_file_can_be_read_alone_whatever_its_name(tmp_path):
    recording = Recording(write(tmp_path, sample(), rotate=(4,)))
    renamed = recording.files[1].rename(tmp_path / "part.mcap")

    assert list(Recording(renamed)) == entries(sample())[5:]


def test_a_file_that_was_only_just_opened_is_no_damage(tmp_path):
    recording = Recording(write(tmp_path, sample(), rotate=(4,)))
    last = recording.files[1]
    for size in (0, 5, 40):
        last.write_bytes(last.read_bytes()[:size])

        assert list(recording) == entries(sample())[:5]
        assert list(recording.entries(seq=3)) == entries(sample())[3:5]


def test_following_a_run_gives_what_is_written_meanwhile_over_several_files(tmp_path):
    tape = Tape(tmp_path, ABOUT, "every", NOTES)
    items = play([], ABOUT.plan).log
    tape.write(items[0])
    following = Recording(tmp_path).follow()
    assert next(following) == items[0]

    for item in items[1:]:
        tape.write(item)
        if item.event.seq % 4 == 0:
            tape.seal()
        assert next(following) == item
    assert list(following) == []
    tape.close()


def test_following_goes_on_where_the_file_was_closed_behind_its_back(tmp_path):
    tape = Tape(tmp_path, ABOUT, "every", NOTES)
    items = play([], ABOUT.plan).log
    tape.write(items[0])
    tape.write(items[1])
    following = Recording(tmp_path).follow(patience=5)
    assert next(following) == items[0]
    tape.seal()
    assert next(following) == items[1]
    for item in items[2:]:
        tape.write(item)
    tape.seal()

    assert list(following) == items[2:]


def test_following_a_run_that_is_quiet_for_long_does_not_begin_anew(tmp_path):
    recording = Recording(write(tmp_path, sample()[:6], sealed=False))

    assert list(recording.follow(patience=0.3)) == entries(sample()[:6])


def test_following_begins_at_any_event(tmp_path):
    recording = Recording(write(tmp_path, sample(), rotate=(2, 4, 8)))

    for seq in range(16):
        found = list(recording.follow(patience=0.05, seq=seq))
        assert found == list(recording.entries(seq=seq))


def test_the_newest_event_is_found_in_whatever_is_written(tmp_path):
    for count, rotate in ((5, ()), (6, (2, 4)), (len(sample()), (4, 8))):
        folder = tmp_path / str(count)
        recording = Recording(write(folder, sample()[:count], sealed=False, rotate=rotate))
        assert recording.last == [one for one in recording if isinstance(one, Committed)][-1]


def test_following_ends_when_patience_does(tmp_path):
    recording = Recording(write(tmp_path, sample()[:4], sealed=False))

    assert list(recording.follow(patience=0.1)) == entries(sample())[:4]


def test_following_waits_where_nothing_new_has_come(tmp_path):
    recording = Recording(write(tmp_path, sample()[:4], sealed=False))

    assert list(recording.follow(patience=0.4)) == entries(sample())[:4]


def test_following_ends_where_the_writer_was_killed(tmp_path):
    following = Recording(write(tmp_path, sample()[:4], sealed=False)).follow()

    assert list(itertools.islice(following, 4)) == entries(sample())[:4]
    with pytest.raises(RecordingError, match="its writer is gone"):
        next(following)


RUN = """
import sys
from pathlib import Path
from railbus.schemas import Plan
from railbus.subscribers import Recorder
from tests.semantics.killed import Witness
from tests.semantics.synthetic import play
recorder = Recorder(sys.argv[1])
recorder.claim("run", 0)
witness = Witness(Path(sys.argv[1]) / "seen", 2)
play([witness, recorder], Plan(mode="train", epochs=3, batch_num=40))
"""


def test_a_run_of_another_process_can_be_followed(tmp_path):
    command = [sys.executable, "-c", RUN, str(tmp_path)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        events = tmp_path / "run" / "events"
        while not any(one.stat().st_size for one in events.glob("*")):
            pass
        found = list(Recording(tmp_path / "run").follow(patience=20))

    assert [one.event.seq for one in found if isinstance(one, Committed)] == list(range(248))


READER = """
import sys
from railbus.bus import Recording, recover
recording = Recording(sys.argv[1])
count = sum(1 for _ in recording)
for seq in range(0, count, count // 10):
    assert next(iter(recording.entries(seq=seq))).event.seq == seq
    assert next(iter(recording.entries(time=seq * 1e-9))).event.time_ns == seq
status = open("/proc/self/status").read()
print(count, next(one for one in status.splitlines() if one.startswith("VmHWM")).split()[1])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells the peak")
def test_memory_stays_flat_however_long_a_recording_is(tmp_path):
    peaks = []
    for count in (1000, 1_000_000 if soaking() else 100_000):
        folder = tmp_path / str(count)
        folder.mkdir()
        with (folder / "000-00000000.mcap").open("xb") as file:
            writer = SegmentWriter(file, ABOUT, NOTES)
            for seq in range(count):
                writer.write(entry(seq, time_ns=seq))
            writer.seal()
        command = [sys.executable, "-c", READER, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
        peaks.append([int(one) for one in done.stdout.split()])

    (few, before), (many, after) = peaks
    assert many > 99 * few
    assert after - before < 12_000  # KiB

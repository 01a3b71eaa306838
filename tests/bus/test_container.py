"""The files are MCAP for whoever else reads them: mcap's own reader, and with it any viewer."""

from mcap.reader import make_reader

from railbus.bus import Recording
from railbus.bus.segment import pack_event, schemas
from railbus.schemas.events import Committed

from .recorded import entry, sample, write


def test_mcaps_own_reader_finds_every_event_on_its_channel(tmp_path):
    path = Recording(write(tmp_path, sample())).files[0]
    with path.open("rb") as file:
        reader = make_reader(file, validate_crcs=True)
        found = [
            (channel.topic, message.data)
            for _, channel, message in reader.iter_messages(log_time_order=False)
            if channel.topic.startswith("on_")
        ]
        summary = reader.get_summary()
        notes = {one.name for one in reader.iter_metadata()}
        attached = [one.name for one in reader.iter_attachments()]

    events = [one for one in sample() if isinstance(one, Committed)]
    assert found == [(one.event.hook.value, pack_event(one)) for one in events]
    assert summary is not None and summary.statistics is not None
    assert summary.statistics.message_count == len(sample()) + 2
    assert {one.name for one in summary.schemas.values()} == {f"railbus.{one}" for one in schemas()}
    assert notes == {"railbus", "versions", "git"}
    assert attached == ["railbus-index"]


def test_messages_are_found_by_time_and_channel_and_their_times_never_go_back(tmp_path):
    times = [5, 9, 9, 12]
    items = [entry(seq, time_ns=time_ns) for seq, time_ns in enumerate(times)]
    path = Recording(write(tmp_path, items)).files[0]
    with path.open("rb") as file:
        reader = make_reader(file)
        found = [
            message.log_time - 10**18
            for _, _, message in reader.iter_messages(["on_train_step_end"], starting_at=10**18 + 9)
        ]
        summary = reader.get_summary()

    assert found == times[1:]
    assert summary is not None and summary.statistics is not None
    assert summary.statistics.message_start_time == 10**18 + 5
    assert summary.statistics.message_end_time == 10**18 + 12

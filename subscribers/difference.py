"""`diff`: where two streams part."""

from collections.abc import Iterator

from railbus.bus.sequencer import Sequencer
from railbus.bus.stream import Stream
from railbus.schemas.events import Ack, Gap


def acks_of(stream: Stream) -> Iterator[Ack]:
    """Every ack of a stream in order, plain oks included, which it does not hold by themselves."""
    about = stream.about
    sequencer = Sequencer(about.run_id, about.roles)
    places = {role.name: k for k, role in enumerate(about.roles)}
    for item in stream:
        if isinstance(item, Gap):
            continue
        event, said = item.event, {ack.by: ack for ack in item.acks}
        for k in sequencer.wanting(event.hook, item.step, item.epoch):
            name = about.roles[k].name
            if name in said:
                yield said[name]
            elif name not in item.decision.detached:  # it missed its deadline
                yield Ack(run_id=event.run_id, seq=event.seq, hook=event.hook, by=name)
        for name in item.decision.detached:
            sequencer.detach(places[name])

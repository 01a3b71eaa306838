"""Runs without JAX: the real lifecycle, bus and callbacks, over steps that compute nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from anyio.from_thread import start_blocking_portal

from railbus.bus import About, Draft, EventBus, Publisher
from railbus.schemas import Decision, Fire, Hook, Ledger, Need, Plan, lifecycle
from railbus.schemas.events import Committed
from railbus.subscribers import Callback, Roster, RunContext


@dataclass
class Played:
    """What a run left behind."""

    log: list[Committed] = field(default_factory=list)
    error: BaseException | None = None
    params: dict[str, Any] = field(default_factory=dict)
    publisher: Any = None

    @property
    def hooks(self) -> list[str]:
        return [entry.event.hook.value for entry in self.log]


class _Steps:
    def __init__(self, plan: Plan) -> None:
        self.plan, self.moments = plan, lifecycle(plan)
        self.moment: Fire | Need | None = next(self.moments)
        self.mode, self.batch = plan.mode, 0

    def advance(self, answer: Any) -> None:
        try:
            self.moment = self.moments.send(answer)
        except StopIteration:
            self.moment = None

    def drafts(self):
        while isinstance(self.moment, Fire):
            fire = self.moment
            self.mode = fire.hook.mode or self.mode
            if "epoch_begin" in fire.hook:
                self.batch = 0
            decision: Decision = yield Draft(fire.hook, fire.changes, fire.drop)
            self.advance(decision)

    def meet(self) -> None:
        if self.moment is Need.BATCH:
            size = self.plan.batch_num if self.mode == "train" else self.plan.valid_batch_num
            self.batch += 1
            self.advance(self.batch <= (size or 0))
        else:
            self.advance(None)


def play(
    callbacks: Sequence[Callback],
    plan: Plan,
    bus: EventBus | None = None,
    played: Played | None = None,
    incarnation: int = 0,
) -> Played:
    """Carry a run out to its end; `played` can be looked at meanwhile."""
    bus = EventBus() if bus is None else bus
    played = Played() if played is None else played
    roster, ledger, steps = Roster(callbacks), Ledger(), _Steps(plan)
    with start_blocking_portal() as portal:
        with portal.wrap_async_context_manager(bus.open("run", roster.workers)) as log:
            roster.enter(ledger, lambda mode: played.publisher.sequencer.stop_requested(mode))
            played.publisher = Publisher(log, roster.participants, ledger, incarnation)
            roles = tuple(one.role for one in roster.participants)
            log.about = About(run_id="run", incarnation=incarnation, plan=plan, roles=roles)
            try:
                roster.watch(log, played.publisher.sequencer.request_stop)
                while steps.moment is not None:
                    if isinstance(steps.moment, Fire):
                        played.publisher.publish(steps.drafts())
                    else:
                        steps.meet()
            except BaseException as error:
                played.error = error
                played.publisher.publish(_last(error))
            played.error = roster.dismiss() or played.error
            roster.exit(None)
            played.log, played.params = log.entries(), dict(ledger.params)
    return played


def _last(error: BaseException):
    yield Draft(Hook.EXCEPTION, {"status": "failed"}, error=error)


class Script(Callback):
    """Does what it is told: `acts` maps (hook, occurrence) to a function of the run context."""

    def __init__(self, name: str, acts: dict[tuple[str, int], Any], trace: list[Any]) -> None:
        self.name, self.acts, self.trace = name, acts, trace
        self.counts: dict[str, int] = {}
        for hook in Hook:
            if hook is not Hook.EXCEPTION:
                setattr(self, hook.value, self._hook(hook))

    def _hook(self, hook: Hook):
        def run(run_context: RunContext) -> None:
            count = self.counts[hook.value] = self.counts.get(hook.value, 0) + 1
            seen = run_context.original_args()
            own = {key: seen[key] for key in sorted(seen) if key.startswith("k")}
            self.trace.append((self.name, run_context.event.seq, hook.value, own))
            act = self.acts.get((hook.value, count))
            if act is not None:
                act(run_context)

        return run

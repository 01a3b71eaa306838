"""The pytest plugin, tried in sessions of its own (pytester)."""

import json
import subprocess
import sys
from typing import Any

import pytest

from railbus.bus import Recording
from railbus.subscribers import Recorder

from .scripted import DATA, make_trainer

pytest_plugins = ["pytester"]

MADE = """
    import pytest
    from railbus.subscribers import Callback, EarlyStopping, LossMonitor, StopAtTime, synthesize

    RESULTS = {"accuracy": [0.1, 0.2, 0.2, 0.2, 0.2]}

    def made(**changes):
        given = dict(epochs=5, batches=4, losses=[3, 2, 1, 1, 1], metrics=RESULTS) | changes
        return synthesize(**given)
"""
STOPS = """
    def test_stops(replay):
        got = replay(made()).into(EarlyStopping("accuracy", patience=%d, mode="max"))
        got.assert_acks_match()
"""


class Session:
    """Runs a test module with the plugin."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self._pytester = pytester
        self.goldens = pytester.path / "goldens" / "test_it"

    def __call__(self, body: str, *arguments: str) -> Any:
        self._pytester.makepyfile(test_it=MADE + body)
        return self._pytester.runpytest("-p", "no:cacheprovider", *arguments)


@pytest.fixture
def session(pytester, monkeypatch):
    """`CI` is not set."""
    monkeypatch.delenv("CI", raising=False)
    return Session(pytester)


def passes(session, body):
    result = session(body)
    result.assert_outcomes(passed=1)


def test_a_recording_is_found_beside_the_test_and_replayed(pytester, session):
    make_trainer().train(2, DATA, Recorder(pytester.path / "runs"), run_id="one")

    passes(
        session,
        """
    def test_lines(replay):
        got = replay("runs/one").into(LossMonitor())
        assert len(got.lines) == 8
        got.assert_as_recorded()
    """,
    )
    assert len(list(Recording(pytester.path / "runs" / "one"))) > 8


def test_a_golden_is_missed_written_kept_and_checked(session):
    missing = session(STOPS % 2)
    missing.assert_outcomes(failed=1)
    missing.stdout.fnmatch_lines(["*there is no golden '*test_stops.acks.jsonl'; write it with*"])

    session(STOPS % 2, "--railbus-goldens=new").assert_outcomes(passed=1)
    text = (session.goldens / "test_stops.acks.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert lines[0] == {"railbus": 1, "ignore": [], "tolerances": {}}
    assert lines[1]["hook"] == "on_train_begin" and lines[1]["ok"] is True
    assert lines[-1]["stop"]["reason"].startswith("epoch 4: accuracy has not improved")

    session(STOPS % 2).assert_outcomes(passed=1)


def test_a_difference_names_event_callback_and_field_with_the_acks_around(session):
    session(STOPS % 2, "--railbus-goldens=new")
    before = (session.goldens / "test_stops.acks.jsonl").read_bytes()

    for mode in ("check", "new"):
        result = session(STOPS % 3, f"--railbus-goldens={mode}")
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(
            [
                "*#64 on_train_epoch_end EarlyStopping stop.reason: expected 'epoch 4*got 'nothing'*",
                "*expected:*",
                '*> {"seq": 64*',
            ]
        )
        assert (session.goldens / "test_stops.acks.jsonl").read_bytes() == before

    session(STOPS % 3, "--railbus-goldens=update").assert_outcomes(passed=1)
    session(STOPS % 3).assert_outcomes(passed=1)


@pytest.mark.parametrize("mode", ["new", "update"])
def test_ci_only_checks(session, monkeypatch, mode):
    monkeypatch.setenv("CI", "true")
    result = session(STOPS % 2, f"--railbus-goldens={mode}")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert not session.goldens.exists()


def test_a_golden_that_no_test_uses_fails_the_session(session):
    session(STOPS % 2, "--railbus-goldens=new")
    (session.goldens / "test_gone.acks.jsonl").write_text("{}")

    result = session(STOPS % 2)
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["railbus: no test uses the golden '*test_gone.acks.jsonl'"])


@pytest.mark.parametrize("chosen", [["-k", "stops"], ["test_it.py::test_stops"]])
def test_goldens_of_tests_that_were_left_out_are_not_unused(session, chosen):
    body = STOPS % 2 + (STOPS % 3).replace("test_stops", "test_other")
    session(body, "--railbus-goldens=new").assert_outcomes(passed=2)

    assert session(body, *chosen).ret == pytest.ExitCode.OK


def test_goldens_of_tests_that_did_not_fail_last_are_not_unused(session, pytester, monkeypatch):
    monkeypatch.setenv("FAIL", "1")
    fails = (STOPS % 3).replace("test_stops", "test_other")
    fails += "        import os\n        assert not os.environ.get('FAIL')\n"
    pytester.makepyfile(test_it=MADE + STOPS % 2 + fails)
    pytester.runpytest("--railbus-goldens=new").assert_outcomes(passed=1, failed=1)
    monkeypatch.delenv("FAIL")

    result = pytester.runpytest("--lf")
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.OK


def test_no_two_tests_of_a_module_share_a_golden(session):
    body = """
    @pytest.mark.parametrize("patience", [1, 2], ids=["a b", "a-b"])
    def test_ids(replay, patience):
        into(replay, patience)

    class TestOne:
        def test_stops(self, replay):
            into(replay, 1)

    class TestTwo:
        def test_stops(self, replay):
            into(replay, 2)

    @pytest.mark.parametrize("text", ["x" * 400])
    def test_long(replay, text):
        into(replay, 1)

    def into(replay, patience):
        got = replay(made()).into(EarlyStopping("accuracy", patience=patience, mode="max"))
        got.assert_acks_match()
    """
    session(body, "--railbus-goldens=new").assert_outcomes(passed=5)

    session(body).assert_outcomes(passed=5)
    names = {path.name for path in session.goldens.iterdir()}
    assert len(names) == 5
    assert {"TestOne.test_stops.acks.jsonl", "test_ids-a-b.acks.jsonl"} < names


def test_a_reason_may_hold_what_ends_a_line_elsewhere(session):
    body = """
    class Stops(Callback):
        def on_train_begin(self, run_context):
            run_context.request_stop("one\\u2028two\\x85three")

    def test_it(replay):
        replay(made()).into(Stops()).assert_acks_match()
    """
    session(body, "--railbus-goldens=new").assert_outcomes(passed=1)

    session(body).assert_outcomes(passed=1)


def test_two_comparisons_in_one_test_have_two_goldens(session):
    body = STOPS % 2 + "        got.assert_acks_match()\n"
    session(body, "--railbus-goldens=new").assert_outcomes(passed=1)

    names = sorted(path.name for path in session.goldens.iterdir())
    assert names == ["test_stops.2.acks.jsonl", "test_stops.acks.jsonl"]


def test_tolerances_and_ignored_fields_stand_in_the_golden(session):
    body = """
    class Sets(Callback):
        def on_train_epoch_end(self, run_context):
            run_context.original_args()["mine"] = %s
            if run_context.original_args().cur_epoch_num == 5:
                run_context.request_stop("%s")

    def test_sets(replay):
        got = replay(made()).into(Sets())
        got.assert_acks_match(ignore=["stop.reason"], tolerances={"mine": 0.01})
    """
    session(body % (1.0, "a"), "--railbus-goldens=new").assert_outcomes(passed=1)
    head = json.loads((session.goldens / "test_sets.acks.jsonl").read_text().splitlines()[0])

    assert head == {"railbus": 1, "ignore": ["stop.reason"], "tolerances": {"mine": 0.01}}
    session(body % (1.005, "b")).assert_outcomes(passed=1)
    result = session(body % (1.02, "b"))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*#16 on_train_epoch_end Sets patch.mine: expected 1.0, got 1.02*"]
    )


def test_a_run_is_walked_event_by_event(session):
    passes(
        session,
        """
    def test_walk(replay):
        run = replay(made())
        assert run.step().event.hook == "on_train_begin"
        assert run.goto(epoch=2).event.hook == "on_train_epoch_begin"
        assert run.until("on_train_step_end").step == 5
        assert run.until(lambda event: event.seq == 30).event.seq == 30
        assert run.goto(step=10).step == 10
        with pytest.raises(ValueError, match="one of seq"):
            run.goto()
        with pytest.raises(ValueError, match="ends before 99"):
            run.goto(epoch=99)
        assert run.step() is None
    """,
    )


def test_callbacks_are_fed_step_by_step_and_the_rest_at_the_end(session):
    passes(
        session,
        """
    def test_paused(replay, capsys):
        run = replay(made())
        stopping = EarlyStopping("accuracy", patience=9, mode="max")
        got = run.into(stopping, LossMonitor(4), paused=True)
        assert stopping.best is None
        run.goto(epoch=2)
        assert stopping.best == 0.1
        print("mine")
        run.goto(epoch=3)
        assert stopping.best == 0.2
        assert capsys.readouterr().out == "mine\\n"
        assert got.stop is None and len(got.lines) == 10
        assert run.step() is None
    """,
    )


def test_a_walk_that_is_not_walked_to_its_end_leaves_no_thread(session):
    passes(
        session,
        """
    import threading

    @pytest.fixture(autouse=True)
    def clean():
        yield
        assert not [one for one in threading.enumerate() if "railbus" in one.name]

    def test_paused(clean, replay):
        run = replay(made())
        run.into(LossMonitor(), paused=True)
        run.step()
    """,
    )


def test_what_a_callback_raises_reaches_the_test(session):
    passes(
        session,
        """
    class Fails(Callback):
        def on_train_step_end(self, run_context):
            raise RuntimeError("no")

    def test_error(replay):
        with pytest.raises(RuntimeError, match="no"):
            replay(made()).into(Fails())
        got = replay(made()).into(Fails(), paused=True)
        with pytest.raises(RuntimeError, match="no"):
            got.acks
    """,
    )


def test_faults(session):
    passes(
        session,
        """
    class Sees(Callback):
        def __init__(self):
            self.seen, self.error = [], None
        def on_train_step_end(self, run_context):
            self.seen.append((run_context.original_args().cur_step_num, run_context.now()))
        def on_exception(self, run_context, error):
            self.error = str(error)

    def steps(run):
        sees = Sees()
        run.into(sees)
        return [step for step, _ in sees.seen], sees

    def test_faults(replay):
        third = lambda event: event.hook == "on_train_step_end" and event.cb_params.cur_step_num == 3
        plain, whole = steps(replay(made()))
        assert plain == list(range(1, 21)) and whole.error is None
        assert steps(replay(made()).drop(third))[0] == [1, 2, *range(4, 21)]
        assert steps(replay(made()).duplicate(third))[0] == [1, 2, 3, *range(3, 21)]
        late = steps(replay(made()).delay(third, 60))[1]
        gained = [b - a for (_, a), (_, b) in zip(whole.seen, late.seen)]
        assert gained == pytest.approx([0, 0] + [60] * 18)
        seen, failed = steps(replay(made()).crash(third))
        assert (seen, failed.error) == ([1, 2], "RuntimeError: crashed by the test")
        got = replay(made()).delay(third, 60).into(StopAtTime(30))
        assert got.stop.by == "StopAtTime"
        run = replay(made())
        run.step()
        with pytest.raises(RuntimeError, match="under way"):
            run.drop(5)
    """,
    )


def test_a_test_file_that_uses_only_the_plugin_loads_no_jax(pytester, monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    pytester.makepyfile(
        test_it=MADE
        + """
    import sys

    def test_it(replay):
        replay(made()).into(LossMonitor())
        assert not {"jax", "jaxlib", "flax", "optax", "orbax"} & set(sys.modules)
    """
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=pytester.path)

    assert done.returncode == 0, done.stdout

"""Callbacks by name: literals only, and clear words for what names none."""

import sys

import pytest

from railbus.schemas.errors import ArgumentError
from railbus.subscribers import EarlyStopping, LossMonitor
from railbus.subscribers.named import callback_named

OWN = """
from railbus.subscribers import Callback

class Own(Callback):
    def __init__(self, *args, **kwargs):
        self.given = args, kwargs

one = Own()
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_callbacks.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one])
    yield "own_callbacks"
    sys.modules.pop("own_callbacks", None)


def test_a_name_alone_is_a_built_in_callback():
    assert type(callback_named("EarlyStopping")) is EarlyStopping
    assert type(callback_named(" LossMonitor( per_print_times = 3 )")) is LossMonitor


def test_a_module_in_the_current_directory_is_found(own):
    made = callback_named(own + ":Own(1, 'a:b', [2.5, None], key={'x': (True, -1)})")

    assert vars(made)["given"] == ((1, "a:b", [2.5, None]), {"key": {"x": (True, -1)}})


@pytest.mark.parametrize(
    "text",
    [
        "EarlyStopping(patience=print('no'))",
        "EarlyStopping(__import__('os').getcwd())",
        "EarlyStopping(*[1])",
        "EarlyStopping(**{'patience': 1})",
        "EarlyStopping(patience=1).__class__()",
        "EarlyStopping()()",
        "EarlyStopping(",
        "EarlyStopping(1) + 1",
        "os.path",
        "",
        "(1)",
    ],
)
def test_what_is_no_name_with_literals_is_refused(text, capsys):
    with pytest.raises(ArgumentError, match="names no callback"):
        callback_named(text)

    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "text, words",
    [
        ("nowhere.to.be.found:Own", "cannot import 'nowhere.to.be.found'"),
        ("NoSuchCallback", "'railbus.subscribers' has no 'NoSuchCallback'"),
        ("EarlyStopping(nope=1)", "cannot make .* unexpected keyword argument 'nope'"),
        ("os:getcwd", "must give a Callback, got str"),
        ("..relative:Own", "cannot import '..relative'"),
        ("sys:path", "cannot make 'sys:path': 'list' object is not callable"),
    ],
)
def test_what_gives_no_callback_says_why(text, words):
    with pytest.raises(ArgumentError, match=words):
        callback_named(text)


def test_a_callback_that_was_made_already_is_refused(own):
    with pytest.raises(ArgumentError, match="is a callback already"):
        callback_named(f"{own}:one")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise KeyError('x')", "cannot import 'odd_callbacks': KeyError: 'x'"),
        ("def f(:", "cannot import 'odd_callbacks': SyntaxError: invalid syntax"),
        ("def Own():\n    raise KeyError('x')", "cannot make 'odd_callbacks:Own': KeyError: 'x'"),
    ],
)
def test_whatever_own_code_raises_is_told_in_words(code, words, tmp_path, monkeypatch):
    (tmp_path / "odd_callbacks.py").write_text(code)
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ArgumentError, match=words):
        callback_named("odd_callbacks:Own")
    sys.modules.pop("odd_callbacks", None)

"""Callbacks that are named in text: `package.module:Name(argument, key=value)`."""

import ast
import importlib
import sys
from typing import Any

from railbus.schemas.errors import ArgumentError, RailbusError
from railbus.schemas.spelling import near

from .callback import Callback

HOME = "railbus.subscribers"


def callback_named(text: str) -> Callback:
    """The callback that `text` names, made anew.

    Args:
        text: `package.module:Name`, or `Name` of a built-in one; then, in parentheses, its
            arguments: Python literals, nothing is evaluated. Modules are found as with `python -m`.

    Raises:
        ArgumentError: it names none, or cannot be made.
    """
    module, name, args, kwargs = _parsed(text)
    found = _found(module, name)
    if isinstance(found, Callback):
        raise ArgumentError(f"{text!r} is a callback already; name its class, or a function")
    try:
        made = found(*args, **kwargs)
    except RailbusError:
        raise
    except Exception as error:  # the user's own code may raise anything
        raise ArgumentError(f"cannot make {text!r}: {_told(error)}") from error
    if not isinstance(made, Callback):
        raise ArgumentError(f"{text!r} must give a Callback, got {type(made).__name__}")
    return made


def _parsed(text: str) -> tuple[str, str, list[Any], dict[str, Any]]:
    head, bracket, _ = text.partition("(")
    module, colon, name = head.rpartition(":")
    call = text[len(module) + len(colon) :]
    try:
        node = ast.parse(call.strip() if bracket else f"{call.strip()}()", mode="eval").body
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            raise ValueError("no call of a name")
        args = [ast.literal_eval(one) for one in node.args]
        kwargs = {one.arg: ast.literal_eval(one.value) for one in node.keywords if one.arg}
        if len(kwargs) != len(node.keywords):
            raise ValueError("** is no literal")
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise ArgumentError(
            f"{text!r} names no callback ({_words(error)}); expected package.module:Name, Name of a "
            f"built-in one, or either with arguments that are literals: EarlyStopping(patience=3)"
        ) from error
    return module or HOME, name.strip(), args, kwargs


def _found(module: str, name: str) -> Any:
    if "" not in sys.path:  # a console script does not have the current directory there
        sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever the module does when it is imported
        missing = isinstance(error, AttributeError) and module in sys.modules
        hint = near(name, dir(sys.modules.get(module))) if missing else ""
        said = f"{module!r} has no {name!r}{hint and '; ' + hint}" if missing else ""
        raise ArgumentError(said or f"cannot import {module!r}: {_told(error)}") from error


def _told(error: Exception) -> str:
    """What is wrong, and of an error that does not say it by itself of which kind it is."""
    known = isinstance(error, (ImportError, TypeError, ValueError))
    known = known and not isinstance(error, SyntaxError)
    return str(error) if known else f"{type(error).__name__}: {error}"


def _words(error: BaseException) -> str:
    return getattr(error, "msg", None) or str(error).partition(" on line")[0]

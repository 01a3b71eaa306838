"""Who may watch and who may steer: tokens, their scopes, and the file one is kept in (C11)."""

import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from threading import Lock
from typing import Literal, TypeAlias

from railbus.schemas.errors import ArgumentError, ArgumentTypeError

Scope: TypeAlias = Literal["observe", "control"]
SCOPES: frozenset[Scope] = frozenset({"observe", "control"})
SHORTEST = 43  # characters of 256 bits in base64
LONGEST = 256


class Token:
    """What a client shows to be let in; it is not printed.

    Args:
        value: at least 43 characters that nobody can guess; `Token.new()` makes them.
        scopes: `"observe"` to watch, `"control"` to stop and to set values.
        runs: only these; None is every run.
        expires: Unix time in seconds from which on it is worth nothing.
        name: whose it is, in decisions and log lines.

    Raises:
        ArgumentError, ArgumentTypeError: for a value that is too short, or an unknown scope.
    """

    def __init__(
        self,
        value: str,
        *,
        scopes: Collection[Scope] = SCOPES,
        runs: Collection[str] | None = None,
        expires: float | None = None,
        name: str = "operator",
    ) -> None:
        if not isinstance(value, str) or not SHORTEST <= len(value) <= LONGEST:
            raise ArgumentError(
                f"a token has {SHORTEST} to {LONGEST} characters; make one with Token.new()"
            )
        if not (value.isascii() and value.isprintable()) or " " in value:
            raise ArgumentError("a token has printable ASCII characters without spaces only")
        if isinstance(scopes, str) or isinstance(runs, str):
            raise ArgumentTypeError("scopes and runs are collections of str, not one str")
        if unknown := set(scopes) - SCOPES:
            raise ArgumentError(f"scopes are 'observe' and 'control', got {sorted(unknown)}")
        self.value, self.name, self.expires = value, name, expires
        self.scopes = frozenset(scopes)
        self.runs = None if runs is None else frozenset(runs)
        self.digest = _digest(value.encode())

    @classmethod
    def new(
        cls,
        *,
        scopes: Collection[Scope] = SCOPES,
        runs: Collection[str] | None = None,
        expires: float | None = None,
        name: str = "operator",
    ) -> "Token":
        """One with a new value of 256 random bits."""
        value = secrets.token_urlsafe(32)
        return cls(value, scopes=scopes, runs=runs, expires=expires, name=name)

    def sees(self, run_id: str) -> bool:
        """Whether it is worth something for this run."""
        return self.runs is None or run_id in self.runs

    def __repr__(self) -> str:
        return f"Token(name={self.name!r}, scopes={sorted(self.scopes)})"


class Tokens:
    """The tokens that are worth something now; from any thread."""

    def __init__(self, tokens: Iterable[Token] = ()) -> None:
        self._tokens: tuple[Token, ...] = ()
        self._lock = Lock()
        for token in tokens:
            self.add(token)

    def __len__(self) -> int:
        return len(self._tokens)

    def add(self, token: Token) -> None:
        """From here on it lets in.

        Raises:
            ArgumentTypeError: it is no `Token`.
        """
        if not isinstance(token, Token):
            raise ArgumentTypeError(f"expected a Token, got a {type(token).__name__}")
        with self._lock:
            self._tokens += (token,)

    def revoke(self, token: Token) -> None:
        """From here on it is worth nothing; who came in with it is sent away."""
        with self._lock:
            self._tokens = tuple(one for one in self._tokens if one is not token)

    def find(self, shown: bytes) -> Token | None:
        """The token of that value; it takes as long for a near miss as for any other."""
        digest, found = _digest(shown), None
        for token in self._tokens:
            if hmac.compare_digest(token.digest, digest) and self.holds(token):
                found = token
        return found

    def holds(self, token: Token) -> bool:
        """Whether `token` is still worth something."""
        return token in self._tokens and (token.expires is None or time.time() < token.expires)


def write_token(path: str | os.PathLike[str], token: Token) -> None:
    """Keep `token` in a new file that only its owner can read.

    Raises:
        FileExistsError: there is one.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(token.value + "\n")


def read_token(path: str | os.PathLike[str]) -> str:
    """The value in a token file.

    Raises:
        ArgumentError: others than its owner can read it, or it holds no token.
        OSError: it cannot be read.
    """
    with open(path, encoding="ascii", errors="replace") as file:
        if os.fstat(file.fileno()).st_mode & 0o077:
            raise ArgumentError(f"{Path(path)} can be read by others; chmod 600 it")
        value = file.read(LONGEST + 2).strip()
    return Token(value).value


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()

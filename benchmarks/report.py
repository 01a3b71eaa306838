"""Rows with their limits and verdicts, as a table on the terminal and in markdown."""

from collections.abc import Sequence
from dataclasses import dataclass

from timing import Figure

HEADS = ("network", "what", "median", "min..max", "limit", "", "beside")


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        form: of the figure, for `str.format`.
        most, least: the limit, if there is one: the median may not be above, or below it.
        beside: what else there is to know, for information.
    """

    network: str
    what: str
    figure: Figure
    form: str = "{:.2f}"
    most: float | None = None
    least: float | None = None
    beside: str = ""

    @property
    def within(self) -> bool | None:
        """Whether it keeps its limit; None where there is none."""
        if self.most is not None:
            return self.figure.median <= self.most
        return None if self.least is None else self.figure.median >= self.least

    def cells(self) -> tuple[str, ...]:
        """As text, one for each of `HEADS`."""
        shown = [self.form.format(one) for one in self.figure[:3]]
        limit = "-"
        if self.most is not None:
            limit = "<= " + self.form.format(self.most)
        elif self.least is not None:
            limit = ">= " + self.form.format(self.least)
        verdict = {True: "within", False: "OVER" if self.least is None else "UNDER", None: "shown"}
        spread = f"{shown[1]}..{shown[2]}" if self.figure.count > 1 else "one run"
        return (
            self.network,
            self.what,
            shown[0],
            spread,
            limit,
            verdict[self.within],
            self.beside,
        )


def text(rows: Sequence[Sequence[str]], heads: Sequence[str]) -> str:
    """Columns for a terminal."""
    table = [tuple(heads), *rows]
    widths = [max(len(row[k]) for row in table) for k in range(len(heads))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def markdown(rows: Sequence[Sequence[str]], heads: Sequence[str]) -> str:
    """The same as a markdown table."""
    lines = ["| " + " | ".join(row) + " |" for row in (tuple(heads), *rows)]
    return "\n".join([lines[0], "| " + " | ".join("---" for _ in heads) + " |", *lines[1:]])

"""Numbers as a plot of plain characters."""

import math
from collections.abc import Iterator, Sequence

from .readings import short

WIDTH, HEIGHT = 60, 8  # characters
# The bits of a braille character, by row and column of its dots.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


class Curve:
    """A series of any length as a bounded number of means of neighbours, equally many each.

    Args:
        most: bins that are kept; each takes in twice as many numbers when there would be more.

    Attributes:
        count: numbers that were added; `odd` of them were NaN or infinite and are left out.
        first, last, least, greatest: of the others; None before the first.
    """

    def __init__(self, most: int = 8 * WIDTH) -> None:
        self.count = self.odd = 0
        self.first: float | None = None
        self.last: float | None = None
        self.least, self.greatest = math.inf, -math.inf
        self._most, self._each = most, 1
        self._bins: list[tuple[float, int]] = []

    def add(self, value: float) -> None:
        """The next number."""
        place = self.count // self._each
        if place == self._most:
            pairs = zip(self._bins[::2], self._bins[1::2], strict=True)
            self._bins = [(one[0] + two[0], one[1] + two[1]) for one, two in pairs]
            self._each *= 2
            place = self.count // self._each
        self.count += 1
        if place == len(self._bins):
            self._bins.append((0.0, 0))
        if not math.isfinite(value):
            self.odd += 1
            return
        self.first = value if self.first is None else self.first
        self.last = value
        self.least, self.greatest = min(self.least, value), max(self.greatest, value)
        total, held = self._bins[place]
        self._bins[place] = (total + value, held + 1)

    def points(self, number: int) -> list[float | None]:
        """At most `number` means along the series; None where all numbers were left out."""
        number = min(number, len(self._bins))
        found = []
        for place in range(number):
            begin, end = (one * len(self._bins) // number for one in (place, place + 1))
            held = sum(count for _, count in self._bins[begin:end])
            total = sum(total for total, _ in self._bins[begin:end])
            found.append(total / held if held else None)
        return found


def plot(curve: Curve, braille: bool = True) -> list[str]:
    """Lines with the curve, greatest value at the top; `[]` where there is nothing to draw.

    Args:
        braille: use braille characters, which hold 2 x 4 dots each; otherwise ASCII.
    """
    across, down = (2, 4) if braille else (1, 1)
    points = curve.points(WIDTH * across)
    known = [point for point in points if point is not None]
    if not known:
        return []
    low, high = min(known), max(known)
    rows = HEIGHT * down
    scale = (rows - 1) / (high - low) if high > low else 0.0
    cells = [[0] * WIDTH for _ in range(HEIGHT)]
    for x, point in _columns(points, WIDTH * across):
        y = round((high - point) * scale)
        cells[y // down][x // across] |= _DOTS[y % down][x % across] if braille else 1
    marks = [short(high), *[""] * (HEIGHT - 2), short(low)]
    edge = max(map(len, marks))
    return [
        f"{mark:>{edge}} {_drawn(row, braille)}".rstrip()
        for mark, row in zip(marks, cells, strict=True)
    ]


def _columns(points: Sequence[float | None], width: int) -> Iterator[tuple[int, float]]:
    """Each column and its value, on straight lines between the points."""
    for x in range(width):
        place, part = divmod(x * (len(points) - 1), width - 1)
        here, there = points[place], points[min(place + 1, len(points) - 1)]
        if here is not None and there is not None:
            yield x, here + (there - here) * part / (width - 1)


def _drawn(row: list[int], braille: bool) -> str:
    if braille:
        return "".join(chr(0x2800 + cell) if cell else " " for cell in row)
    return "".join("*" if cell else " " for cell in row)

"""The plot of events per second over callbacks; matplotlib is an optional extra."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from timing import Figure

MISSING = "no plot: matplotlib is not here (pip install 'railbus[plot]', or pip install matplotlib)"
INK, COLOURS = "#7d8590", ("#2f81f7", "#d29922", "#db61a2")


def size_text(size: int) -> str:
    """Bytes for people."""
    return f"{size} B" if size < 1024 else f"{size // 1024} KiB"


def draw(found: Mapping[tuple[int, int], Figure], path: Path) -> None:
    """Events per second by (callbacks, payload bytes), readable on light and dark ground.

    Raises:
        ImportError: there is no matplotlib.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError(MISSING) from error
    matplotlib.use("agg")
    from matplotlib import pyplot

    colours = {key: INK for key in ("text.color", "axes.labelcolor", "axes.edgecolor")}
    colours |= {"xtick.color": INK, "ytick.color": INK, "font.size": 11}
    with pyplot.rc_context(colours):
        figure, axes = pyplot.subplots(figsize=(7, 4.2))
        _lines(axes, found)
        figure.tight_layout()
        figure.savefig(path, dpi=160, transparent=True)
        pyplot.close(figure)


def _lines(axes: Any, found: Mapping[tuple[int, int], Figure]) -> None:
    counts = sorted({count for count, _ in found})
    for colour, size in zip(COLOURS, sorted({size for _, size in found}), strict=True):
        figures = [found[count, size] for count in counts]
        axes.plot(
            counts, [one.median for one in figures], "o-", color=colour, label=size_text(size)
        )
        low, high = [one.low for one in figures], [one.high for one in figures]
        axes.fill_between(counts, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.set(xscale="log", yscale="log", xlabel="callbacks, each called at every event")
    axes.set_ylabel("committed events per second")
    axes.set_xticks(counts, [str(count) for count in counts])
    low, high = axes.get_ylim()
    ticks = [step * 10**power for power in range(2, 7) for step in (1, 2, 5)]
    ticks = [tick for tick in ticks if low <= tick <= high]
    axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=INK, alpha=0.25, linewidth=0.6)
    axes.legend(title="snapshot of about", frameon=False, loc="lower left")

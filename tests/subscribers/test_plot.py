"""Curves of any length in a bounded number of bins, drawn with plain characters."""

import math

import pytest

from railbus.subscribers.plot import HEIGHT, WIDTH, Curve, plot


def curve_of(values, **options):
    curve = Curve(**options)
    for value in values:
        curve.add(value)
    return curve


@pytest.mark.parametrize("number", [1, 7, 8, 9, 16, 17, 1000, 4096])
def test_a_curve_keeps_means_of_neighbours_in_a_bounded_number_of_bins(number):
    points = curve_of(map(float, range(number)), most=8).points(10_000)

    assert len(points) <= 8
    assert points == sorted(points)
    assert points[0] < number / 4 + 1
    assert points[-1] > number * 3 / 4 - 1


def test_numbers_that_are_not_finite_are_counted_and_left_out():
    curve = curve_of([1.0, math.nan, math.inf, 3.0])

    assert (curve.count, curve.odd) == (4, 2)
    assert curve.points(4) == [1.0, None, None, 3.0]


@pytest.mark.parametrize("braille", [True, False])
def test_a_falling_curve_goes_from_the_upper_left_to_the_lower_right(braille):
    lines = plot(curve_of([4.0, 3.0, 2.0, 1.0]), braille)

    starts = [len(line) - len(line[2:].lstrip()) for line in lines]
    assert len(lines) == HEIGHT
    assert lines[0].startswith("4 ") and lines[-1].startswith("1 ")
    assert starts == sorted(starts)
    assert len(lines[-1]) == 2 + WIDTH
    assert all(line.isascii() for line in lines) is not braille


@pytest.mark.parametrize("values", [[2.0], [2.0, 2.0, 2.0]])
def test_a_level_curve_is_one_row(values):
    lines = plot(curve_of(values), braille=False)

    assert [line.count("*") for line in lines] == [WIDTH, *[0] * (HEIGHT - 1)]


@pytest.mark.parametrize("values", [[], [math.nan]])
def test_without_a_finite_number_nothing_is_drawn(values):
    assert plot(curve_of(values)) == []

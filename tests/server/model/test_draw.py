"""The hash behind a draw: fixed for ever, even, and different for every part of a draw's name."""

import pytest

from tidegate_server.model.draw import uniform


def test_a_draw_keeps_its_number_over_versions() -> None:
    # Changing these changes the output of every seeded request: a note in the changelog, at least.
    assert [uniform(0, 0, 0), uniform(42, 17, 0), uniform(-1, 5, 3)] == RECORDED


RECORDED = [0.9130805468762743, 0.17964747981797025, 0.75580797899261]


@pytest.mark.parametrize("part", [0, 1, 2])
def test_every_part_of_the_name_changes_the_number(part: int) -> None:
    numbers = {uniform(*(value if i == part else 7 for i in range(3))) for value in range(1000)}
    assert len(numbers) == 1000


def test_parts_do_not_stand_for_each_other() -> None:
    numbers = {uniform(a, b, c) for a in range(10) for b in range(10) for c in range(10)}
    assert len(numbers) == 1000


def test_seeds_count_modulo_two_to_the_64() -> None:
    assert uniform(-1, 3, 0) == uniform((1 << 64) - 1, 3, 0)
    assert uniform(1 << 64, 3, 0) == uniform(0, 3, 0)


@pytest.mark.parametrize("part", [0, 1, 2])
def test_numbers_are_even_over_their_range(part: int) -> None:
    num = 20_000
    bins = [0] * 20
    for value in range(num):
        number = uniform(*(value if i == part else 3 for i in range(3)))
        assert 0.0 <= number < 1.0
        bins[int(number * 20)] += 1
    # Each bin is binomial: 1000 on average, with a standard deviation of 31.
    assert max(abs(count - num / 20) for count in bins) < 5 * 31

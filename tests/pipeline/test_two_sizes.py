"""What two captures' messages say of the sizes of their micro-batches, where no setting states them."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace

import pytest

from traceviz_dag.errors import NoEvidenceError
from traceviz_dag.pipeline.two_sizes import StepsOfTwoSizes, _ratio

HERE = {("pp", "send", "forward"): 100, ("tp", "allreduce", "forward"): 40, ("dp", "gather", "other"): 70}


def there(**more: int) -> dict[tuple[str, str, str], int]:
    return {key: more.get(key[0], size) for key, size in HERE.items()}


def test_messages_of_activations_grow_with_the_micro_batch_and_those_of_gradients_do_not():
    assert _ratio(HERE, there(pp=300, tp=120)) == 3
    assert _ratio(HERE, there()) == 1
    assert _ratio({("dp", "gather", "other"): 70}, {("dp", "gather", "other"): 70}) is None


@pytest.mark.parametrize(
    ("other", "why"),
    [(there(pp=300, tp=80), "TP allreduce are 2 times as large and those of PP send 3"), (there(dp=90), "two models")],
)
def test_messages_that_grow_otherwise_are_of_another_change(other, why):
    with pytest.raises(NoEvidenceError, match=why):
        _ratio(HERE, other)


@pytest.mark.parametrize(
    ("ratio", "unit", "sizes"),
    [
        (Fraction(4), Fraction(1), [2, 3, 4]),
        (Fraction(1, 4), Fraction(1, 4), [0.25, 0.5, 0.75]),
        (Fraction(3, 2), Fraction(1, 2), [1.5]),
        (Fraction(5, 2), Fraction(1), [2]),
    ],
)
def test_sizes_are_of_whole_samples_from_the_one_capture_to_the_other(ratio, unit, sizes):
    found = StepsOfTwoSizes([SimpleNamespace(ratio=ratio)], unit).sizes
    assert [float(size) for size in found] == sizes

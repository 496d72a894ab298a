"""Values of a column where some rows are none."""

from __future__ import annotations

import numpy as np

from trace_doctor.arrays import at_rows


def test_the_first_row_is_a_row_and_minus_one_is_none() -> None:
    column, rows = np.array([7, 8, 9]), np.array([0, -1, 2])
    assert at_rows(column, rows, 5).tolist() == [7, 5, 9]
    assert at_rows(column, rows, np.array([1, 2, 3])).tolist() == [7, 2, 9]


def test_a_column_without_rows_has_none_of_them() -> None:
    assert at_rows(np.zeros(0, dtype=bool), np.array([-1, -1]), True).tolist() == [True, True]

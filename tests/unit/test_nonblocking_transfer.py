"""Numbers on their way to a device: what is read of lists and arrays."""

from __future__ import annotations

from array import array

import pytest
import torch

from engine.nonblocking_transfer import upload

CPU = torch.device("cpu")


def test_numbers_come_as_they_are_of_lists_arrays_and_lists_of_them() -> None:
    assert upload([3, -(2**63), 2**63 - 1], CPU).tolist() == [3, -(2**63), 2**63 - 1]
    assert upload([array("q", [1, 2]), array("q", [3, 4])], CPU).tolist() == [[1, 2], [3, 4]]
    assert upload([[5e-324, 1.0], [2.0, -0.0]], CPU, torch.float64).tolist() == [[5e-324, 1.0], [2.0, -0.0]]
    assert upload([7], CPU, torch.int32).dtype == torch.int32


def test_of_nothing_there_are_no_numbers() -> None:
    assert upload([], CPU).shape == (0,)
    assert upload([array("q"), array("q"), array("q")], CPU).shape == (3, 0)


def test_numbers_beyond_64_bits_are_refused() -> None:
    with pytest.raises(OverflowError):
        upload([2**63], CPU)

"""Random shapes and combinations of features, all operations, against the definition."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_cases import compare_random

pytestmark = [
    pytest.mark.usefixtures("triton_ready", "poisoned"),
    pytest.mark.filterwarnings("ignore:divide by zero encountered in log2:RuntimeWarning"),
]


@given(data=st.data())
@settings(deadline=None, derandomize=True, max_examples=25, suppress_health_check=list(HealthCheck))
def test_random_combinations(data):
    compare_random("triton", data, largest=120)

"""
Random sequences of commands and upstream behaviours against the real engine (`machine`), judged by `laws` after each.

The short form runs in the suite. The full form, 1,000 sequences or as many as the variable says:

    ENGINE_SEQUENCES=1000 scripts/test tests/engine/test_stateful.py

A number of sequences is always the same ones.
"""

import os

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.engine.machine import SessionMachine

SEQUENCES = int(os.environ.get("ENGINE_SEQUENCES", "50"))
PART = 50
"""How many sequences are one test, so that none takes so long that it is taken for a hanging one."""


@pytest.mark.parametrize("part", range(-(-SEQUENCES // PART)))
def test_random_sequences_of_commands_and_behaviours_keep_every_law(part: int) -> None:
    """
    B002, B006, B020, B023, B026, B027, B030, B032, B126, B128 to B132, B140, B141, B144, B147, B150 in every mixture.
    """
    profile = settings(
        max_examples=PART,
        stateful_step_count=40,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    run_state_machine_as_test(seed(part)(SessionMachine), settings=profile)

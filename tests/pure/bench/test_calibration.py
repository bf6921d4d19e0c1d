"""The sweeps behind the cost model, and the model beside them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tilegen as tg
from benchmarks import fit, lowerings
from benchmarks.calibrate import (
    CHOICES,
    FAMILIES,
    HELD_OUT,
    OTHER_OPS,
    PATCHES,
    SEED,
    TURNS,
    candidates,
    programs,
)
from benchmarks.fit import (
    NEAR,
    SWEEPS,
    Error,
    Sweep,
    attention_pairs,
    conv_pairs,
    error_of,
    fitted,
    pairs,
)
from tilegen.graph import attention_time, conv_time
from tilegen.graph.product_time import RATES, RATES_OF
from tilegen.targets.sm90.emit import generate


def test_a_seed_draws_the_same_programs_and_plans() -> None:
    first, second = ([(d, candidates(d)) for d in itertools.islice(programs(SEED), 24)] for _ in range(2))
    assert first == second
    assert [d for d, _ in first] != list(itertools.islice(programs(SEED + 1), 24))


def test_one_program_in_so_many_is_held_out() -> None:
    drawn = list(itertools.islice(programs(SEED), 320))
    for family, (_, share) in FAMILIES.items():
        of_family = [d for d in drawn if d.family == family]
        assert (
            len(of_family) == 10 * share and sum(d.held_out for d in of_family) == len(of_family) // HELD_OUT
        )


@pytest.mark.parametrize("family", ["linear", "block", "conv"])
def test_candidates_are_kernels(family: str) -> None:
    drawn = next(d for d in programs(SEED) if d.family == family)
    for candidate in candidates(drawn)[::4]:
        plan = tg.plan(drawn.program, "h200", target="sm_90a", options=candidate.options)
        assert generate(plan).text


def test_the_model_holds_its_bars_on_programs_that_it_was_not_fitted_to() -> None:
    error = error_of([p for p in pairs() if p.held_out])
    assert error.pairs > 200 and error.spearman >= 0.85 and error.near >= 0.95 and error.size < 0.1
    assert error.regret[0] <= 0.02 and error.regret[1] <= 0.08 and error.regret[2] <= 0.15, NEAR


OF_ROWS = [s for s in SWEEPS if s.gpu == "h200" and s.seen and s.family not in (PATCHES, CHOICES)]


@pytest.mark.parametrize("family", sorted({s.family for s in OF_ROWS}))
def test_the_model_holds_for_linears_of_later_sweeps_that_it_was_not_fitted_to(family: str) -> None:
    """All sweeps of a family together: of the older ones the pairs are left whose kernels are as they were.
    Where warpgroups take turns one choice in twenty is further off than the bar of 8 %: docs/performance.md
    tells."""
    error = error_of([p for s in OF_ROWS if s.family == family for p in s.pairs() if p.held_out])
    assert error.programs >= 40 and error.near >= 0.95 and error.size < 0.06
    bar = 0.09 if family == TURNS else 0.08
    assert error.regret[0] <= 0.02 and error.regret[1] <= bar and error.regret[2] <= 0.15


def held_out(path: Path) -> Error:
    (sweep,) = (s for s in SWEEPS if s.path == path)
    return error_of([p for p in sweep.pairs() if p.held_out])


def test_the_model_holds_among_what_it_took_for_the_best() -> None:
    """Where only ways are timed that it held for nearly as good: one choice in fifteen is further off than
    the bar of 8 %, docs/performance.md tells."""
    error = held_out(fit.CHOICES)
    assert error.programs > 100 and error.near >= 0.95 and error.size < 0.04
    assert error.regret[0] <= 0.02 and error.regret[1] <= 0.10 and error.regret[2] <= 0.15


def test_the_model_of_linears_of_patches_holds_for_programs_that_it_was_not_fitted_to() -> None:
    error = held_out(fit.PATCHES)
    assert error.programs > 40 and error.near >= 0.95 and error.size < 0.06
    assert error.regret[0] <= 0.02 and error.regret[1] <= 0.08 and error.regret[2] <= 0.15


def test_the_model_of_patches_of_narrow_channels_holds_for_programs_that_it_was_not_fitted_to() -> None:
    """One in ten of its choices is further off than the bar of 8 %: docs/performance.md tells."""
    error = held_out(fit.NARROW)
    assert error.programs > 40 and error.near >= 0.95 and error.size < 0.06
    assert error.regret[0] <= 0.02 and error.regret[1] <= 0.12


def test_the_model_holds_for_a_sweep_that_was_measured_after_it() -> None:
    """Of all its programs, by what was learned before."""
    error = error_of([p for sweep in SWEEPS if not sweep.seen for p in sweep.pairs()])
    assert error.programs > 50 and error.near >= 0.95 and error.size < 0.06 and error.spearman >= 0.85
    assert error.regret[0] <= 0.02 and error.regret[1] <= 0.08 and error.regret[2] <= 0.15


@pytest.mark.parametrize("sweep", [s for s in SWEEPS if s.gpu == "h100"], ids=lambda s: s.told)
def test_the_model_of_an_h100_holds_for_programs_that_it_was_not_fitted_to(sweep: Sweep) -> None:
    """Its worst choices of drawn linears are further off than the bar: docs/performance.md tells."""
    held = [p for p in sweep.pairs() if p.held_out]
    h100, h200 = (error_of(held, rates) for rates in (RATES_OF["h100"], RATES))
    assert h100.pairs > 140 and h100.near >= 0.95 and h100.size < min(0.07, h200.size)
    assert h100.regret[0] <= 0.025 and h100.regret[1] < 0.10


def test_one_launch_or_launches_is_chosen_well_for_programs_that_the_choice_was_not_fitted_to() -> None:
    held = lowerings.held_out()
    chosen, one, launches = ([b.regret(choice(b)) for b in held] for choice in lowerings.CHOICES.values())
    assert len(held) >= 80 and np.mean(chosen) < 0.01
    assert np.quantile(chosen, 0.95) <= 0.08 and max(chosen) <= 0.15
    assert np.mean(one) > 0.02 and np.mean(launches) > 0.02


def test_wrong_constants_are_seen_and_found_again() -> None:
    """Fitted from constants that are far off, the model errs no more than from those that it has."""
    some = [p for p in pairs() if not p.held_out][:150]
    off = replace(RATES, clock=RATES.clock / 1.5, l2=RATES.l2 / 2, launch=2 * RATES.launch)
    usual, wrong, found = (error_of(some, r).size for r in (RATES, off, fitted(some, off)))
    assert wrong > 2 * usual and found < 1.15 * usual


def test_the_model_of_convolutions_holds_for_programs_that_it_was_not_fitted_to() -> None:
    """Its worst choice is further off than the bar: docs/performance.md tells."""
    error = error_of([p for p in conv_pairs() if p.held_out])
    assert error.programs > 150 and error.near >= 0.95 and error.size < 0.07 and error.spearman >= 0.85
    assert error.regret[0] <= 0.005 and error.regret[1] <= 0.08


def test_what_was_learned_says_more_than_the_formulas_do_of_programs_that_it_was_not_grown_on() -> None:
    linears = [p for sweep in SWEEPS if sweep.gpu == "h200" for p in sweep.pairs() if p.held_out]
    for held, rates in ((linears, RATES), ([p for p in conv_pairs() if p.held_out], conv_time.RATES)):
        learned, formula = error_of(held), error_of(held, rates)
        assert learned.size < 0.9 * formula.size and learned.regret[1] < formula.regret[1]


def test_the_model_of_attention_holds_its_bars_on_programs_that_it_was_not_fitted_to() -> None:
    error = error_of([p for p in attention_pairs() if p.held_out], attention_time.RATES, several=2)
    assert error.programs > 40 and error.near >= 0.95 and error.size < 0.1
    assert error.regret[0] <= 0.02 and error.regret[1] <= 0.08 and error.regret[2] <= 0.15


def test_an_attention_is_timed_with_the_tile_of_each_height() -> None:
    drawn = next(d for d in programs(SEED, OTHER_OPS) if d.family == "attention")
    own, half, whole = (c.tiles.get("attn", ()) for c in candidates(drawn))
    assert own == () and half[0] == 64 and whole[0] == 128

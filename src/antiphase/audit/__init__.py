"""Audits: attack the values that a program releases, and compare the measured leak with the claimed guarantee.

An audit is a measurement and proves nothing about privacy. Its results have the types `MeasuredLowerBound` and
`StatisticalTest`, so they cannot be confused with a proved `Bound`. `import antiphase` does not load this module; use
`import antiphase.audit`. The modules `antiphase.audit.torch`, `antiphase.audit.jax` and `antiphase.audit.flower` train
with canaries (artificial examples) through the integrations, and record what is released.
"""

from antiphase._measured import Audit, MeasuredLowerBound, StatisticalTest
from antiphase.audit._black_box import FinalModels, evaluate_final_models, final_models, joined_final_models
from antiphase.audit._contribution_test import contribution_test
from antiphase.audit._counting import counting_bound
from antiphase.audit._evaluate import evaluate
from antiphase.audit._gaussian_form import Ratio, gaussian_bound, signal_ratio
from antiphase.audit._noise_test import noise_power, noise_test, scale_power
from antiphase.audit._one_run import one_run_bounds, steinke_epsilon, tradeoff_epsilon
from antiphase.audit._participation_test import participation_test
from antiphase.audit._release import Release
from antiphase.audit._scores import Scores, final_model_scores, reference_scores, scores
from antiphase.audit._simulation import drive_numpy, release_of_run, simulate

__all__ = [
    "Audit",
    "FinalModels",
    "MeasuredLowerBound",
    "Ratio",
    "Release",
    "Scores",
    "StatisticalTest",
    "contribution_test",
    "counting_bound",
    "drive_numpy",
    "evaluate",
    "evaluate_final_models",
    "final_model_scores",
    "final_models",
    "gaussian_bound",
    "joined_final_models",
    "noise_power",
    "noise_test",
    "one_run_bounds",
    "participation_test",
    "reference_scores",
    "release_of_run",
    "scale_power",
    "scores",
    "signal_ratio",
    "simulate",
    "steinke_epsilon",
    "tradeoff_epsilon",
]

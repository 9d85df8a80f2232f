"""The dense family: the best strategy among all matrices, with a proved bound on its distance to the optimum."""

from antiphase._optimize.dense.optimizer import MAX_DENSE_STEPS, optimize_dense

__all__ = ["MAX_DENSE_STEPS", "optimize_dense"]

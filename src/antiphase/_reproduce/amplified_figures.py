"""Reproductions of Choquette-Choo et al. 2023 (amplified banded): Figures 8, 9 and 11."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import antiphase as ap
from antiphase._report import Chart, HeatMap, series
from antiphase._reproduce.banded_noise import error, noise
from antiphase._reproduce.multi_epoch import dense_solution
from antiphase._reproduce.reproduction import Picture, Row, claimed, drawn, reproduction
from antiphase.strategies import Strategy, Tree


def _factorizations() -> Iterator[tuple[str, Strategy]]:
    """Yield the names and strategies of Figure 8, n = 64. "EN" means that the columns of C have equal norms."""
    single = ap.SingleParticipation()
    yield "single-epoch", ap.optimize("dense", steps=64, participation=single).strategy
    for k in (8, 4):
        yield f"{k}-epoch MF", ap.optimize("dense", steps=64, participation=ap.FixedEpochs(k, 64 // k)).strategy
    for bands in (8, 16):
        for equal in (False, True):
            name = f"{'EN-' if equal else ''}banded, {bands} bands"
            yield (
                name,
                ap.optimize(
                    "banded", steps=64, participation=ap.FixedEpochs(4, 16), bands=bands, equal_norms=equal
                ).strategy,
            )


@reproduction("bandmf-amplified-figure-8", "Factorizations of the prefix sum for n = 64, C and its inverse")
def figure_8(full: bool) -> Iterator[Row | Picture]:
    """The rows check the paper's statements about these matrices."""
    matrices = {name: strategy.encoder() for name, strategy in _factorizations()}
    for name, C in matrices.items():
        yield HeatMap(f"{name}: C", C)
        yield HeatMap(f"{name}: inverse of C", np.asarray(np.linalg.inv(C), dtype=np.float64))
        below = np.tril(np.linalg.inv(C), -1)
        inside = below[np.tril_indices(64, -1)]
        share = float(((inside <= 1e-9) & (inside > -1)).mean())
        what = f"{name}: entries of the inverse below the diagonal"
        yield claimed(what, "mostly in (-1, 0]", f"{100 * share:.0f} %", share > 0.5, NEGATIVE_NOTE)
    for k in (8, 4):
        C = matrices[f"{k}-epoch MF"]
        lags = [i * 64 // k for i in range(1, k)]
        means = [float(np.diagonal(C, -lag).mean()) for lag in lags]
        yield claimed(
            f"{k}-epoch MF: diagonals {64 // k} steps apart",
            "negative entries",
            f"mean from {min(means):.3f} to {max(means):.3f}",
            max(means) < 0,
        )
    for bands in (8, 16):
        free, equal = matrices[f"banded, {bands} bands"], matrices[f"EN-banded, {bands} bands"]
        scaled = free / np.linalg.norm(free, axis=0)
        change = float(np.abs(scaled - equal).max())
        what = f"{bands} bands: equal norms against free norms, columns scaled to norm 1"
        yield claimed(what, "a minor difference", f"largest entry of the difference {change:.3f}", change < 0.2)


NEGATIVE_NOTE = "there are small positive entries between the negative diagonals"


@reproduction("bandmf-amplified-figure-9", "The binary tree's encoder and its pseudo-inverse")
def figure_9(full: bool) -> Iterator[Row | Picture]:
    """The tree has 64 steps."""
    tree = Tree(64, "full")
    C, N = tree.encoder(), tree.noising()
    yield HeatMap("encoder of the tree, transposed", C.T)
    yield HeatMap("pseudo-inverse of the encoder", N)
    apart = float(np.abs(N - np.linalg.pinv(C)).max())
    yield claimed("optimal decoder", "is the pseudo-inverse", f"largest difference {apart:.1e}", apart < 1e-9)
    unit = float(np.abs(N @ C - np.eye(64)).max())
    yield claimed("decoder x encoder", "the identity", f"largest difference {unit:.1e}", unit < 1e-9)


EPSILONS = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 16.0)
QUICK_BANDS = (1, 2, 4, 8, 16, 32, 64, 100)
FULL_BANDS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 80, 100)
PRINTED_OPTIMUM = 6.53e5  # lower bound on the total squared loss (multi-epoch paper, Table 1), used without --full


@reproduction(
    "bandmf-amplified-figure-11", "Error of BandMF relative to DP-SGD and multi-epoch MF on CIFAR-10", sizes=True
)
def figure_11(full: bool) -> Iterator[Row | Picture]:
    """20 epochs of 100 steps, delta = 1e-5. Without `--full`, the loss of multi-epoch MF is that of the paper."""
    n, k, delta = 2000, 20, 1e-5
    loss = dense_solution(20, 2000).loss if full else (PRINTED_OPTIMUM / n) ** 0.5
    against_sgd, against_mf, chosen = [], [], []
    for epsilon in EPSILONS:
        errors = {b: noise(epsilon, delta, n, k, b) * error(n, b, full) for b in (FULL_BANDS if full else QUICK_BANDS)}
        best = min(errors, key=lambda b: errors[b])
        chosen.append(best)
        against_sgd.append((errors[best] / errors[1]) ** 2)
        against_mf.append((errors[best] / (noise(epsilon, delta, 1, 1, 1) * loss)) ** 2)
        yield drawn(
            f"epsilon {epsilon:g}",
            f"{best} bands; {against_sgd[-1]:.3f} times the total error of DP-SGD, "
            f"{against_mf[-1]:.3f} times that of multi-epoch MF",
        )
    yield Chart(
        "Total squared error of BandMF relative to others",
        "epsilon",
        "ratio",
        (series("to DP-SGD", EPSILONS, against_sgd), series("to multi-epoch MF", EPSILONS, against_mf)),
        log_x=True,
    )
    worst = max(against_sgd)
    yield claimed("against DP-SGD", "at least as good for all epsilon", f"ratio at most {worst:.3f}", worst <= 1.0)
    crossing = next((e for e, r in zip(EPSILONS, against_mf, strict=True) if r > 1), float("inf"))
    said = "better up to epsilon of about 5"
    yield claimed("against multi-epoch MF", said, f"worse from epsilon {crossing:g} on", 4 <= crossing <= 8)

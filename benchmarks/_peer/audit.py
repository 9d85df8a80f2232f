"""Runs jax_privacy's auditing functions on stored scores. Arguments: file with in- and out-scores, delta, significance.

Prints JSON with the epsilon of each function.
"""

import json
import sys

import numpy as np
from jax_privacy import auditing

path, delta, significance = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
found = []
with np.load(path) as stored:
    cases = [(stored[f"in{i}"], stored[f"out{i}"]) for i in range(len(stored.files) // 2)]
for inside, outside in cases:
    auditor = auditing.CanaryScoreAuditor(inside, outside)
    row = {
        "thresholds, Bonferroni": auditor.epsilon_clopper_pearson(significance, delta),
        "thresholds, split": auditor.epsilon_clopper_pearson(
            significance, delta, threshold_strategy=auditing.Split(seed=0)
        ),
        "thresholds, many splits": auditor.epsilon_clopper_pearson(
            significance, delta, threshold_strategy=auditing.MultiSplit(num_samples=20, seed=0)
        ),
        "Gaussian": auditor.epsilon_from_gdp(significance, delta),
    }
    if len(inside) + len(outside) <= 2000:
        split = auditing.Split(seed=0)
        row["one run"] = auditor.epsilon_one_run(significance, delta, threshold_strategy=split)
        row["one run, trade-off"] = auditor.epsilon_one_run_fdp(significance, delta, threshold_strategy=split)
    found.append({name: float(value) for name, value in row.items()})
print(json.dumps(found))

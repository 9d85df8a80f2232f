"""Numba kernels: loops over NumPy arrays.

Import this package inside functions only. It loads Numba, which `import antiphase` must not do.
"""

from antiphase._kernels.bins import bins_log_means, draw_cores, draw_powers
from antiphase._kernels.blt import weighted_variances
from antiphase._kernels.correlate import (
    add_multiple,
    buffers_step,
    feedback_steps,
    matrix_product,
    moving_sum_step,
    read_row,
    scale_noise,
    tree_level_step,
    write_row,
    write_scaled,
)
from antiphase._kernels.covariance import (
    autoregressive_variances,
    buffer_response,
    buffer_response_sums,
    buffer_variances,
    filter_columns,
    moving_sum_variances,
    shifted_variances,
)
from antiphase._kernels.covariance_gradient import covariance_backward, covariance_forward, gram_gradient
from antiphase._kernels.exact_gaussian import exact_draws, exact_retries
from antiphase._kernels.gaussian import normals_32, normals_64, tail_pair_32, tail_pair_64
from antiphase._kernels.last_iterate import (
    buffered_rows,
    buffers_backward,
    last_row,
    outer_bands,
    solve_columns,
    solve_transposed,
    workload_gram,
)
from antiphase._kernels.lattice import (
    add_truncated,
    integer_buffers_step,
    integer_sum_step,
    largest_and_square,
    truncated,
)
from antiphase._kernels.linear_algebra import convolve_rows, shifted_gram, solve_bands
from antiphase._kernels.patterns import (
    buffered_square,
    join_gaps,
    separated_chain,
    separated_rows,
    separated_sum,
    shuffled_chain,
)
from antiphase._kernels.sampling import (
    extend_shuffle,
    group_by_key,
    invert_cdf,
    join_window,
    random_subset,
    random_subsets,
    scatter_in_blocks,
    shuffle_blocks,
    uniform_integers,
)
from antiphase._kernels.separation import (
    LINEAR_EXPONENTS,
    SMALLEST_SHARED_SCALE,
    add_patterns,
    backward_log_means,
    participation_probabilities,
    separated_log_means,
    start_log_mean,
)
from antiphase._kernels.tree import full_moments, online_moments

__all__ = [
    "LINEAR_EXPONENTS",
    "SMALLEST_SHARED_SCALE",
    "add_multiple",
    "add_patterns",
    "add_truncated",
    "autoregressive_variances",
    "backward_log_means",
    "bins_log_means",
    "buffer_response",
    "buffer_response_sums",
    "buffer_variances",
    "buffered_rows",
    "buffered_square",
    "buffers_backward",
    "buffers_step",
    "convolve_rows",
    "covariance_backward",
    "covariance_forward",
    "draw_cores",
    "draw_powers",
    "exact_draws",
    "exact_retries",
    "extend_shuffle",
    "feedback_steps",
    "filter_columns",
    "full_moments",
    "gram_gradient",
    "group_by_key",
    "integer_buffers_step",
    "integer_sum_step",
    "invert_cdf",
    "join_gaps",
    "join_window",
    "largest_and_square",
    "last_row",
    "matrix_product",
    "moving_sum_step",
    "moving_sum_variances",
    "normals_32",
    "normals_64",
    "online_moments",
    "outer_bands",
    "participation_probabilities",
    "random_subset",
    "random_subsets",
    "read_row",
    "scale_noise",
    "scatter_in_blocks",
    "separated_chain",
    "separated_log_means",
    "separated_rows",
    "separated_sum",
    "shifted_gram",
    "shifted_variances",
    "shuffle_blocks",
    "shuffled_chain",
    "solve_bands",
    "solve_columns",
    "solve_transposed",
    "start_log_mean",
    "tail_pair_32",
    "tail_pair_64",
    "tree_level_step",
    "truncated",
    "uniform_integers",
    "weighted_variances",
    "workload_gram",
    "write_row",
    "write_scaled",
]

"""Identity, and every C with a single diagonal: the noise of a step is a multiple of the step's z."""

from __future__ import annotations

from typing import final

from antiphase._noise.correlator import Correlator, Noise, Part, Scratch, White
from antiphase.strategies import Feedback


@final
class Independent(Correlator):
    """z_t / C[t, t], no state."""

    recursion: Feedback
    is_replayed = True

    def state_rows(self) -> int:
        """None."""
        return 0

    def prepare(self) -> None:
        """The step's multiple."""
        self._factor = self.factor / float(self.recursion.row(self.step)[0])

    def make(self, part: Part, white: White, scratch: Scratch, out: Noise) -> None:
        """Draw and scale."""
        from antiphase._kernels import scale_noise

        white(self.step, out)
        scale_noise(self._factor, out)

    def replay_from(self, step: int) -> int:
        """Nothing to replay."""
        return step

"""Settings of all tests: `make test` tries the same examples every time, HYPOTHESIS_PROFILE=random tries new ones."""

import os

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True)
settings.register_profile("random")
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

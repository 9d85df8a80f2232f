"""PyTorch integration: correlated noise for Opacus, or for your own training loop.

`import antiphase` does not load PyTorch. Use `import antiphase.torch`.
"""

try:
    import opacus  # noqa: F401
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError("antiphase.torch needs PyTorch and Opacus.\n\nhint: pip install antiphase[torch]") from error

from antiphase.torch._curvature import curvatures
from antiphase.torch._engine import PrivacyEngine
from antiphase.torch._noise_adder import NoiseAdder

__all__ = ["NoiseAdder", "PrivacyEngine", "curvatures"]

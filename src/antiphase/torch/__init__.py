"""PyTorch: correlated noise for any training loop, and for Opacus.

Import it by name, `import antiphase.torch`; `import antiphase` alone does not load PyTorch.
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

"""What must be settled before any test module is imported."""

from __future__ import annotations

import os

import torch

# Triton chooses between its compiler and its interpreter when it is imported, and other libraries import it early.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

try:
    from jaxtyping import install_import_hook
except ImportError:
    pass
else:
    # Every call of the kernels' public functions checks shapes. Only there: the hook would decorate Triton kernels too.
    install_import_hook("attnprobe_kernels.api", "beartype.beartype")

"""Does training with compressed gradients still converge? Runs arms and baseline over the same seeds, and judges.

`tightwire converge` on the command line; `compare` for a Python function. See docs/convergence.md.
"""

from .functions import Compared, compare

__all__ = ["Compared", "compare"]

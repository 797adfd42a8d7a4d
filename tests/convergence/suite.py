"""Makes `tightwire.convergence` importable as `tightwire converge` runs it: without its parent package, which loads a library that
the suite does not need."""
import sys
import types
from pathlib import Path

parent = types.ModuleType("tightwire")
parent.__path__ = [str(Path(__file__).resolve().parents[2] / "python" / "tightwire")]
sys.modules["tightwire"] = parent

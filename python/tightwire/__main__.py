"""python -m tightwire info"""

import sys

from . import info

if sys.argv[1:] == ["info"]:
    print(info(), end="")
else:
    sys.exit("usage: python -m tightwire info")

"""python -m tilegen"""

import sys

from tilegen.cli import main

sys.exit(main())

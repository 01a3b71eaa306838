"""`python -m railbus.subscribers` is `railbus`."""

import sys

from .cli import main

sys.exit(main())

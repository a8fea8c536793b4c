"""`python -m webrl.cli`."""

import sys

from webrl.cli import main

sys.exit(main())

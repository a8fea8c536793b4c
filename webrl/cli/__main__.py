"""`python -m webrl.cli`."""

import sys

from webrl.cli import main
from webrl.runs.machine import restore_python_path

restore_python_path()
sys.exit(main())

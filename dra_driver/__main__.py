"""Makes ``python -m dra_driver`` equivalent to ``dra-driver``."""

import sys

from dra_driver.cli.main import main

sys.exit(main())

"""``python -m dra_driver`` is ``dra-driver``."""

import sys

from dra_driver.cli.main import main

sys.exit(main())

from __future__ import annotations

import sys

from chunkattn.cli.main import main

sys.exit(main())

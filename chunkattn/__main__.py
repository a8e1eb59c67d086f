"""``python -m chunkattn`` is the command ``chunkattn``, of this interpreter's environment."""

from chunkattn.cli.main import main

raise SystemExit(main())

"""The console script ``chunkattn``."""

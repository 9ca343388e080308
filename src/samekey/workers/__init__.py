"""Background services. Each has ``run_once()`` and ``run()``; any number may run at once."""

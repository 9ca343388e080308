"""What operators watch: metrics, a Prometheus endpoint, traces, and the alerts and dashboard that go with it.

Nothing here is needed to serve a request, and nothing here may fail one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

ALERTS: Final = Path(__file__).with_name("alerts.yml")
"""A rule file that Prometheus can load."""
DASHBOARD: Final = Path(__file__).with_name("dashboard.json")
"""A dashboard that Grafana can import."""

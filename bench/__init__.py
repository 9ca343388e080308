"""Speed, as ratios measured side by side in one run. Never a timed test: machines are noisy."""

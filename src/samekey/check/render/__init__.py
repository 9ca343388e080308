"""Reports as text: for people, for scripts, for continuous integration, and as a page."""

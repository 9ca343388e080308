"""What samekey is tested with, public so that users can test their own stores and services."""

"""Migrations of the app, in Django's own way."""

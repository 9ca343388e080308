"""The provider simulator, tested as its users meet it: a real process."""

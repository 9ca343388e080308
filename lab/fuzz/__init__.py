"""Headers and bodies that nobody thought of, over real sockets, at applications of several frameworks."""

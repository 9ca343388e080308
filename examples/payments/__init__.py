"""A small, complete payments service: each way of running an operation once, on one kind of request.

The README beside this file draws the flow; docs/tutorial.md walks through the code.
"""

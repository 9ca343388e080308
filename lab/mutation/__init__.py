"""``make mutants``: which test fails if this line is changed?

Every mutant is one small change of one line of the package: a comparison turned round, a call left out, an
error not raised. The tests that reach the line are run against it, the quickest first, until one fails.
A mutant that no test notices is a line that nobody guards, or one that is not needed.
"""

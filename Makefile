# Two commands are enough: `make demo` and `make test`. Each sets up everything that it needs.
PYTHON  ?= $(shell command -v python3.11 || command -v python3)
VENV    ?= .venv
BIN     := $(VENV)/bin
# One more than there are cores: many tests wait for a lease or a process. More than four gain nothing.
WORKERS ?= $(shell n=$$(($$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2) + 1)); [ "$$n" -gt 4 ] && n=4; echo $$n)

.PHONY: demo test test-all test-rest torture check dependencies format docs bench dist walk peers mutants clean
.DEFAULT_GOAL := test

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

demo: $(VENV)/.installed
	$(BIN)/python -m examples.demo

# Some minutes: every rule, on SQLite and where it matters on PostgreSQL.
test: $(VENV)/.installed
	$(BIN)/pytest -n $(WORKERS) --dist worksteal

# Everything, on servers of every kind.
test-all: $(VENV)/.installed
	SAMEKEY_TESTS=all $(BIN)/pytest -n $(WORKERS) --dist worksteal

# What `make test` leaves out, and nothing else; CI runs this after it.
test-rest: $(VENV)/.installed
	SAMEKEY_TESTS=rest $(BIN)/pytest -n $(WORKERS) --dist worksteal

# The reference service under load and faults, judged from outside: on SQLite, PostgreSQL and MariaDB, two runs at
# the same time, with a seed that is known and with one that is not; and with keys that are used anew. In CI a server that is missing is installed;
# elsewhere SAMEKEY_INSTALL=yes does that.
SEEDS   ?= 7 $(shell $(PYTHON) -c 'import random; print(random.randrange(10**6))')
SECONDS ?= 35
torture: $(VENV)/.installed
	@for seed in $(SEEDS); do \
		for more in "" "--url postgresql:" "--url mysql:" \
			"--ttl 15" "--ttl 15 --url postgresql:" "--ttl 15 --url mysql:"; do echo $$seed $$more; done; \
	done \
		| xargs -P 2 -L 1 $(BIN)/python -m lab.torture service --seconds $(SECONDS) --seed

check: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Whether the packages are the ones that they were, and whether any is known to be weak, where that can be asked.
dependencies: $(VENV)/.installed
	$(BIN)/python -m lab.dependencies

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Writes anew what the documentation takes from the code: the state diagram, tables, real output.
docs: $(VENV)/.installed
	$(BIN)/python -m tests.test_docs

bench: $(VENV)/.installed
	$(BIN)/python -m bench.guard

# How many files and functions a request enters, for whoever wants to read along.
walk: $(VENV)/.installed
	$(BIN)/python -m lab.walk

# samekey check against servers that are not samekey's, installed into an environment of their own; writes docs/check.md.
peers: $(VENV)/.installed
	$(BIN)/python -m lab.peers

# Builds wheel and sdist, and uses the wheel as a new user would, from an empty environment.
dist: $(VENV)/.installed
	$(BIN)/python -m lab.dist

# Which test fails if this line is changed? SAMPLE=0 takes every mutant, and hours; a seed says which ones.
SAMPLE  ?= 400
mutants: $(VENV)/.installed
	$(BIN)/python -m lab.mutation --sample $(SAMPLE) --seed 7

clean:
	rm -rf $(VENV) .peers dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .mutation

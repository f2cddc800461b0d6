# unoom's commands. `make test` sets up what the tests need and runs all of them.

GO ?= go
export CGO_ENABLED = 0

# Public data with known answers, for the scores; absent on a plain checkout.
CORPUS ?= ../shared/corpus

.PHONY: build test test-torch emit-check overhead venv chromium vet score bench recipes race fuzz

build:
	$(GO) build -trimpath -ldflags="-s -w -buildid=" -o unoom ./cmd/unoom

test: vet venv chromium
	$(GO) test -timeout 30m ./...

# The Python environment of the tests on real PyTorch; once made, this takes no
# time. Where the packages cannot be had, those tests skip and say so.
venv:
	@scripts/test-venv.sh

# The browser of the tests of the HTML report; where it cannot be had, they skip.
chromium:
	@scripts/test-chromium.sh

# Real trainings on the CPU: minutes. UNOOM_SLOW=1 adds sweeps and 500 cycles.
test-torch: venv
	UNOOM_TORCH=1 $(GO) test -count=1 -timeout 60m ./python
	UNOOM_TORCH=1 $(GO) test -count=1 -timeout 60m -run 'TestRun' ./internal/cli
	UNOOM_TORCH=1 $(GO) test -count=1 -run WhatTorch ./internal/memory

# What the Python side costs: start, import, step.
overhead: venv
	.venv/bin/python -m pytest -q -s -p no:cacheprovider python/tests/test_overhead.py

vet:
	@test -z "$$(gofmt -l cmd internal catalog tools 2>/dev/null)" || { gofmt -l cmd internal catalog tools; exit 1; }
	$(GO) vet ./...

# The packages that share memory between goroutines, and those that they serve.
race:
	CGO_ENABLED=1 $(GO) test -race -short ./internal/supervise ./internal/ledger ./internal/oomlog ./internal/diagnose ./internal/alloc

fuzz:
	scripts/fuzz

score:
	@$(GO) run ./tools/score -corpus $(CORPUS)
	@if [ -f $(CORPUS)/truth/dev.csv ]; then $(GO) run ./cmd/unoom accuracy $(CORPUS)/truth/dev.csv; else echo "accuracy: SKIPPED, $(CORPUS)/truth is not there"; fi

# Every published recipe through the planner and the engine: a minute.
recipes:
	$(GO) test ./internal/plan -run Recipes -every

# Reading speed and memory against python3, replay speed; estimates and plans.
bench:
	@$(GO) run ./tools/bench
	@$(GO) test ./internal/memory ./internal/plan -run '^$$' -bench 'Estimate|Quick|Plan' | grep '^Bench'

# Emitted files, read by the libraries that they are for; three minutes on two cores.
emit-check: venv
	@scripts/emit-venv.sh
	UNOOM_EMIT_CHECK=1 $(GO) test ./internal/emit -count=1 -v -timeout 30m -run 'Libraries|Gradients|Kubernetes|Slurm|Launch'

# unoom's commands. `make test` sets up what the tests need and runs all of them.

GO ?= go
export CGO_ENABLED = 0

# Public data with known answers, for the scores; absent on a plain checkout.
CORPUS ?= ../shared/corpus

.PHONY: build test vet score bench race fuzz

build:
	$(GO) build -trimpath -ldflags="-s -w -buildid=" -o unoom ./cmd/unoom

test: vet
	$(GO) test ./...

vet:
	@test -z "$$(gofmt -l cmd internal catalog tools 2>/dev/null)" || { gofmt -l cmd internal catalog tools; exit 1; }
	$(GO) vet ./...

race:
	CGO_ENABLED=1 $(GO) test -race ./...

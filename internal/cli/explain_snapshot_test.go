package cli

import (
	"bytes"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"unoom/internal/snapshot/snapshottest"
)

// record NAME FILE writes a memory snapshot of a simulated run.
func recordRun(ts *testscript.TestScript, _ bool, args []string) {
	const mib = 1 << 20
	usual := snapshottest.Training{Layers: 4, Steps: 6, Activation: 24 * mib, Weight: 16 * mib, Native: true}
	var v any
	style := snapshottest.Python4
	switch args[0] {
	case "training":
		v = usual.Run().Snapshot()
	case "batch": // twice the batch
		usual.Activation *= 2
		v = usual.Run().Snapshot()
	case "leak":
		usual.Leak = 8 * mib
		usual.Steps = 12
		v = usual.Run().Snapshot()
	case "full": // the card is too small
		usual.Capacity = 420 * mib
		v = usual.Run().Snapshot()
	case "ring": // the recording began in the middle
		usual.Forget = 3
		v = usual.Run().Snapshot()
	case "pieces":
		v = snapshottest.Pieces().Snapshot()
	case "cpp":
		v, style = usual.Run().Snapshot(), snapshottest.CPP
	default:
		ts.Fatalf("no run %q", args[0])
	}
	var b bytes.Buffer
	ts.Check(snapshottest.Write(&b, v, style))
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), b.Bytes(), 0o644))
}

// examples/snapshot.pickle is a run that leaks until a request fails:
//
//	go test ./internal/cli -run TestExampleSnapshot -update
func TestExampleSnapshot(t *testing.T) {
	const mib = 1 << 20
	run := snapshottest.Training{Layers: 2, Steps: 40, Activation: 48 * mib, Weight: 24 * mib, Leak: 30 * mib, Capacity: 640 * mib}
	var b bytes.Buffer
	if err := snapshottest.Write(&b, run.Run().Snapshot(), snapshottest.Python4); err != nil {
		t.Fatal(err)
	}
	const name = "../../examples/snapshot.pickle"
	if *update {
		if err := os.WriteFile(name, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(name); err != nil || !bytes.Equal(have, b.Bytes()) {
		t.Errorf("%s is not what the simulated run writes (%v); run with -update", name, err)
	}
}

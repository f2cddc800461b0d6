package cli

import (
	"bytes"
	"os"

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

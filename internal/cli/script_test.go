package cli

import (
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/rogpeppe/go-internal/testscript"
)

var update = flag.Bool("update", false, "rewrite what the transcripts of testdata/script expect")

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"unoom": func() { os.Exit(Main(os.Args[1:], System())) },
	})
}

// TestScript runs the transcripts of testdata/script, which are the command's
// documentation as well. After a change that is meant:
//
//	go test ./internal/cli -run TestScript -update
func TestScript(t *testing.T) {
	examples, err := filepath.Abs("../../examples")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("EXAMPLES", examples)
			env.Setenv("LC_ALL", "C")
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("UNOOM_HOME", filepath.Join(env.WorkDir, ".unoom"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":    exits,
			"utf16":    utf16File,
			"oneline":  oneLine,
			"random":   randomFile,
			"record":   recordRun,
			"snapshot": snapshotFile,
		},
	})
}

// exits STATUS COMMAND… runs a command and checks its exit status.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits STATUS COMMAND...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

// utf16 SOURCE TARGET writes a text as Windows PowerShell redirects it.
func utf16File(ts *testscript.TestScript, _ bool, args []string) {
	out := []byte{0xff, 0xfe}
	for _, u := range utf16.Encode([]rune(ts.ReadFile(args[0]))) {
		out = append(out, byte(u), byte(u>>8))
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), out, 0o644))
}

// oneline SOURCE TARGET BYTES writes the text of SOURCE in the middle of one
// line of about BYTES bytes.
func oneLine(ts *testscript.TestScript, _ bool, args []string) {
	n, err := strconv.Atoi(args[2])
	ts.Check(err)
	half := strings.Repeat("x=1, ", n/10)
	text := strings.ReplaceAll(ts.ReadFile(args[0]), "\n", " ")
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(half+text+half), 0o644))
}

// random TARGET BYTES writes bytes that are no text; the same every time.
func randomFile(ts *testscript.TestScript, _ bool, args []string) {
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	out, x := make([]byte, n), uint32(1)
	for i := range out {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		out[i] = byte(x)
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), out, 0o644))
}

package smi

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"unoom/internal/units"
)

func TestDevices(t *testing.T) {
	const two = "0, GPU-aaaa, NVIDIA H100 80GB HBM3, 81559, 4\n1, GPU-bbbb, NVIDIA H100 80GB HBM3, 81559, 70000\n"
	for _, c := range []struct {
		name, text, visible string
		want                []int
	}{
		{"all", two, "", []int{0, 1}},
		{"by number", two, "1", []int{1}},
		{"by a beginning of the UUID", two, "GPU-aa", []int{0}},
		{"several", two, "1, 0", []int{0, 1}},
		{"none is left", two, "-1", nil},
		{"a card that shares the host's memory", "0, GPU-cccc, NVIDIA GB10, [N/A], [N/A]\n", "", nil},
		{"a card that only says its size", "0, GPU-cccc, NVIDIA A100, 40960, [Insufficient Permissions]\n" + two[strings.Index(two, "1,"):], "", []int{1}},
		{"no devices", "No devices were found\n", "", nil},
		{"nothing", "", "", nil},
		{"from Windows", strings.ReplaceAll(two, "\n", "\r\n"), "", []int{0, 1}},
	} {
		got, err := parseDevices(c.text, c.visible)
		if err != nil || len(got) != len(c.want) {
			t.Errorf("%s: %v, %v", c.name, got, err)
			continue
		}
		for i, d := range got {
			if d.Index != c.want[i] || d.Total != 81559*units.MiB {
				t.Errorf("%s: %+v", c.name, d)
			}
		}
	}
}

func TestHolders(t *testing.T) {
	// A process with two contexts is listed twice; under WSL nobody knows how much.
	const text = "GPU-aaaa, 77, 900\nGPU-aaaa, 77, 1000\nGPU-aaaa, 78, [N/A]\nGPU-bbbb, 79, 12\n"
	got, err := parseHolders(text)
	want := []Holder{{"GPU-aaaa", 77, 900 * units.MiB}, {"GPU-aaaa", 77, 1000 * units.MiB}, {"GPU-bbbb", 79, 12 * units.MiB}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := parseHolders("No running processes found\n"); err != nil || got != nil {
		t.Errorf("%v, %v", got, err)
	}
}

// pretend puts a script in nvidia-smi's place.
func pretend(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "nvidia-smi"), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func TestAsk(t *testing.T) {
	pretend(t, `case "$*" in
"--query-gpu=index,uuid,name,memory.total,memory.used --format=csv,noheader,nounits") echo "0, GPU-aaaa, NVIDIA L4, 23034, 1" ;;
"--query-compute-apps=gpu_uuid,pid,used_memory --format=csv,noheader,nounits") echo "GPU-aaaa, 5, 700" ;;
*) exit 6 ;;
esac
`)
	ctx := context.Background()
	if got, err := List(ctx, ""); err != nil || len(got) != 1 || got[0].Name != "NVIDIA L4" {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := Holders(ctx); err != nil || len(got) != 1 || got[0].PID != 5 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := ask(ctx, patience, "--else"); err == nil || !strings.Contains(err.Error(), "exit status 6") {
		t.Errorf("%v", err)
	}
}

// A driver that hangs costs the patience and no more, also where what was started
// has children that keep its output open.
func TestAskDoesNotWaitForADriverThatHangs(t *testing.T) {
	pretend(t, "sleep 60\n")
	began := time.Now()
	_, err := ask(context.Background(), 100*time.Millisecond, "--query-gpu=index")
	if err == nil || !strings.Contains(err.Error(), "did not answer within 100ms") || time.Since(began) > 30*time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := ask(ctx, patience, "--query-gpu=index"); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestNoDriver(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if got, err := List(context.Background(), ""); got != nil || err != nil {
		t.Errorf("%v, %v: no nvidia-smi is no GPU", got, err)
	}
}

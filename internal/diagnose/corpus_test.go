package diagnose

import (
	"bufio"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"unoom/internal/oomlog"
)

// The public reports beside the repository. `make score` prints the figures;
// here they must not fall below what explain promises.
func TestThePromisesHoldOnPublicReports(t *testing.T) {
	f, err := os.Open("../../../shared/corpus/oom-reports/dev.jsonl")
	if err != nil {
		t.Skip("the public reports are not beside the repository: ", err)
	}
	defer f.Close()
	var strict, lenient, among, notOOM, reverse [2]int // right, all
	count := func(to *[2]int, right bool) {
		to[1]++
		if right {
			to[0]++
		}
	}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var r struct {
			IsOOM      bool     `json:"is_oom"`
			Cause      string   `json:"cause"`
			Acceptable []string `json:"acceptable_labels"`
			Answerable bool     `json:"answerable_from_message"`
			Lines      []string `json:"message_lines"`
		}
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		if len(r.Lines) == 0 {
			continue
		}
		d := diagnosed(strings.Join(r.Lines, "\n"))
		sum := 0.0
		for i, c := range d.Causes {
			sum += c.Confidence
			if len(c.Evidence) == 0 {
				t.Errorf("%s without evidence", c.Label)
			}
			if i > 0 && c.Confidence > d.Causes[i-1].Confidence {
				t.Errorf("causes out of order: %v", d.Causes)
			}
		}
		if sum > 1.0001 {
			t.Errorf("confidences sum to %f", sum)
		}
		if r.IsOOM {
			count(&reverse, !d.IsOOM())
		} else {
			count(&notOOM, !d.IsOOM())
		}
		if !r.Answerable {
			continue
		}
		accepted := func(c Cause) bool { return slices.Contains(r.Acceptable, string(c.Label)) }
		if r.Cause != "unknown" {
			count(&strict, len(d.Causes) > 0 && string(d.Causes[0].Label) == r.Cause)
		}
		count(&lenient, len(d.Causes) > 0 && accepted(d.Causes[0]))
		count(&among, slices.ContainsFunc(d.Causes[:min(3, len(d.Causes))], accepted))
	}
	for _, p := range []struct {
		name    string
		got     [2]int
		percent int
	}{{"strict top-1", strict, 80}, {"lenient top-1", lenient, 88}, {"lenient top-3", among, 95}, {"not-OOM recognised", notOOM, 95}} {
		if 100*p.got[0] < p.percent*p.got[1] {
			t.Errorf("%s: %d of %d, promised %d %%", p.name, p.got[0], p.got[1], p.percent)
		}
	}
	if reverse[0] > 0 {
		t.Errorf("%d of %d out-of-memories taken for another error", reverse[0], reverse[1])
	}
}

// Whatever the text, a diagnosis is whole: every cause has evidence, and the
// account, where there is one, sums.
func FuzzLog(f *testing.F) {
	f.Add(full)
	f.Add(bare + smi)
	f.Add(calls("a.py validate out = model(x)") + torchOld("1.00 GiB", "8.00 GiB", "7.00 GiB", "0 bytes", "9.00 GiB"))
	f.Add("[rank3]: " + full + "Killed\n")
	f.Fuzz(func(t *testing.T, text string) {
		d := Log(oomlog.ScanString("fuzz", text), Given{})
		for _, c := range d.Causes {
			if len(c.Evidence) == 0 || c.Confidence <= 0 || c.Confidence > 1 {
				t.Fatalf("%+v", c)
			}
		}
		if a := d.Account; a != nil {
			sum := a.Capacity
			for _, p := range a.Parts {
				sum -= p.Bytes
			}
			if sum != 0 {
				t.Fatalf("parts miss the capacity by %d: %+v", sum, a)
			}
		}
	})
}

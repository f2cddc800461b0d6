package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"unoom/internal/diagnose"
	"unoom/internal/oomlog"
)

// A report is one record of oom-reports/dev.jsonl; README.md beside it has the
// fields and the scoring rules.
type report struct {
	ID         string   `json:"id"`
	IsOOM      bool     `json:"is_oom"`
	Cause      string   `json:"cause"`
	Effective  string   `json:"effective_label"`
	Acceptable []string `json:"acceptable_labels"`
	Answerable bool     `json:"answerable_from_message"`
	Lines      []string `json:"message_lines"`
}

// A tally counts right answers.
type tally struct{ right, all int }

func (t *tally) count(right bool) {
	t.all++
	if right {
		t.right++
	}
}

func (t tally) String() string {
	if t.all == 0 {
		return "  n/a (0 records)"
	}
	return fmt.Sprintf("%5.1f %% (%d of %d)", 100*float64(t.right)/float64(t.all), t.right, t.all)
}

// scoreExplain runs what `unoom explain` runs over the reports, with nothing but
// the lines of the message, and prints the figures of the corpus's README.
func scoreExplain(folder string, verbose bool) error {
	reports, err := readReports(filepath.Join(folder, "dev.jsonl"))
	if err != nil {
		return err
	}
	var strict, lenient1, lenient3, notOOM, reverse, anyStrict, anyLenient1, anyLenient3 tally
	bands := make([]tally, 5)
	mean := make([]float64, 5)
	var wrong []string
	for _, r := range reports {
		if len(r.Lines) == 0 {
			continue
		}
		d := diagnose.Log(oomlog.ScanString(r.ID, strings.Join(r.Lines, "\n")), diagnose.Given{})
		labels, first, confidence := []string{}, "", 0.0
		for i, c := range d.Causes {
			if i == 0 {
				first, confidence = string(c.Label), c.Confidence
			}
			labels = append(labels, string(c.Label))
		}
		top3 := labels[:min(3, len(labels))]
		accepted := slices.Contains(r.Acceptable, first)
		among := slices.ContainsFunc(top3, func(l string) bool { return slices.Contains(r.Acceptable, l) })
		if r.IsOOM {
			reverse.count(!d.IsOOM())
		} else {
			notOOM.count(!d.IsOOM())
		}
		if r.Cause != "unknown" {
			anyStrict.count(first == r.Cause)
		}
		anyLenient1.count(accepted)
		anyLenient3.count(among)
		if band := min(int(confidence*5), 4); first != "" {
			bands[band].count(accepted)
			mean[band] += confidence
		}
		if r.Answerable {
			if r.Cause != "unknown" {
				strict.count(first == r.Cause)
			}
			lenient1.count(accepted)
			lenient3.count(among)
		}
		if verbose || r.Answerable && (!accepted || !among || r.Cause != "unknown" && first != r.Cause) {
			wrong = append(wrong, line(r, &d, accepted, among))
		}
	}
	fmt.Println("explain: cause from the message alone (oom-reports/dev.jsonl)")
	fmt.Println("                               answerable             all with a message")
	fmt.Printf("  strict top-1                 %-22s %s\n", strict, anyStrict)
	fmt.Printf("  lenient top-1                %-22s %s\n", lenient1, anyLenient1)
	fmt.Printf("  lenient top-3                %-22s %s\n", lenient3, anyLenient3)
	fmt.Printf("  not-OOM recognised           %s\n", notOOM)
	fmt.Printf("  an OOM taken for another     %s\n", reverse)
	fmt.Println("\ncalibration: first label accepted, by its confidence")
	for i, b := range bands {
		if b.all > 0 {
			fmt.Printf("  %.1f-%.1f  said %.2f  was %s\n", float64(i)/5, float64(i+1)/5, mean[i]/float64(b.all), b)
		}
	}
	fmt.Println("\nconfusions (answerable; ~ accepted though not the strict label, ? among the first three)")
	for _, w := range wrong {
		fmt.Println("  " + w)
	}
	return nil
}

func line(r report, d *diagnose.Diagnosis, accepted, among bool) string {
	mark := "x"
	switch {
	case accepted && (r.Cause == "unknown" || string(d.Causes[0].Label) == r.Cause):
		mark = " "
	case accepted:
		mark = "~"
	case among:
		mark = "?"
	}
	var got []string
	for _, c := range d.Causes[:min(4, len(d.Causes))] {
		got = append(got, fmt.Sprintf("%s %.2f", c.Label, c.Confidence))
	}
	return fmt.Sprintf("%s %s want %s got %s", mark, r.ID, r.Effective, strings.Join(got, ", "))
}

func readReports(name string) ([]report, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var list []report
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for n := 1; lines.Scan(); n++ {
		var r report
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, n, err)
		}
		list = append(list, r)
	}
	return list, lines.Err()
}

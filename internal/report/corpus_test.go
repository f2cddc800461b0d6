package report

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"unoom/internal/diagnose"
	"unoom/internal/i18n"
	"unoom/internal/oomlog"
	"unoom/internal/remedy"
)

// leftover is a placeholder that nobody filled.
var leftover = regexp.MustCompile(`\{\d+\}|%!|explain\.[a-z]|remedy\.[a-z]|diagnose\.[a-z]`)

// texts are all sentences of an explanation.
func texts(e *Explanation) []string {
	list := append([]string{e.Headline, e.Lead}, e.Notes...)
	for _, c := range e.Causes {
		list = append(list, c.Title)
		for _, s := range c.Evidence {
			list = append(list, s.Text)
		}
	}
	for _, r := range e.Remedies {
		list = append(list, r.Title, r.WhyText, r.Drawback)
	}
	return list
}

func check(t *testing.T, name, text string) {
	t.Helper()
	for _, lang := range []i18n.Lang{i18n.English, i18n.Chinese} {
		res := oomlog.ScanString(name, text)
		d := diagnose.Log(res, diagnose.Given{})
		e, err := Explain(&d, remedy.Advise(d.Situation), res, i18n.Load(lang))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if e.Headline == "" || d.Verdict != diagnose.NothingFound && e.Lead == "" {
			t.Errorf("%s: no answer", name)
		}
		for _, s := range texts(e) {
			// What a log itself says may hold anything.
			if leftover.MatchString(s) && !strings.Contains(text, leftover.FindString(s)) {
				t.Errorf("%s, %s: %q", name, lang, s)
			}
		}
		if a := e.Account; a != nil {
			sum := a.Total
			for _, r := range a.Rows {
				sum -= r.Bytes
			}
			if sum != 0 {
				t.Errorf("%s: the account misses its capacity by %d bytes", name, sum)
			}
		}
	}
}

func TestEveryPublicReportIsExplained(t *testing.T) {
	f, err := os.Open("../../../shared/corpus/oom-reports/dev.jsonl")
	if err != nil {
		t.Skip("the corpus of public reports is not here:", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	n := 0
	for lines.Scan() {
		var r struct {
			ID    string   `json:"id"`
			Lines []string `json:"message_lines"`
		}
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		if len(r.Lines) > 0 {
			check(t, r.ID, strings.Join(r.Lines, "\n"))
			n++
		}
	}
	if n < 50 {
		t.Errorf("only %d reports with a message", n)
	}
}

func FuzzExplain(f *testing.F) {
	examples, _ := filepath.Glob("../../examples/*.log")
	for _, name := range examples {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Add(message)
	f.Add("CUDA out of memory. Tried to allocate 9223372036854775807.00 GiB (GPU 0; 0 bytes total capacity; 1 bytes already allocated)")
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 1<<16 {
			return
		}
		check(t, "x.log", text)
	})
}

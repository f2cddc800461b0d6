package diagnose

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"unoom/internal/i18n"
)

// Every rule says its sentence in both languages, with the same arguments.
func TestEveryRuleHasItsSentence(t *testing.T) {
	en, zh := i18n.Load(i18n.English), i18n.Load(i18n.Chinese)
	seen := map[string]bool{}
	for _, r := range logRules() {
		id := "diagnose." + r.id
		if seen[id] {
			t.Errorf("%s: two rules have this id", id)
		}
		seen[id] = true
		if !en.Has(id) || !zh.Has(id) {
			t.Errorf("%s has no sentence", id)
		}
		if len(r.votes) == 0 {
			t.Errorf("%s votes for nothing", id)
		}
	}
	for _, code := range []string{"long_line", "binary", "truncated", "encoding", "too_many", "interleaved"} {
		if id := "diagnose.warn." + code; !en.Has(id) || !zh.Has(id) {
			t.Errorf("%s has no sentence", id)
		}
	}
	// Notes and checks are named in the source only.
	said := regexp.MustCompile(`(say|check)\("([a-z0-9_]+)"`)
	files, err := filepath.Glob("log*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		source, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range said.FindAllSubmatch(source, -1) {
			id := "diagnose." + map[string]string{"say": "note.", "check": "next."}[string(m[1])] + string(m[2])
			if !en.Has(id) || !zh.Has(id) {
				t.Errorf("%s: %s has no sentence", name, id)
			}
			seen[id] = true
		}
	}
	arg := regexp.MustCompile(`\{\d\}`)
	for id := range seen {
		if a, b := len(arg.FindAllString(en.Text(id), -1)), len(arg.FindAllString(zh.Text(id), -1)); a != b {
			t.Errorf("%s: %d arguments in English, %d in Chinese", id, a, b)
		}
	}
}

package diagnose

import (
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
	arg := regexp.MustCompile(`\{\d\}`)
	for id := range seen {
		if a, b := len(arg.FindAllString(en.Text(id), -1)), len(arg.FindAllString(zh.Text(id), -1)); a != b {
			t.Errorf("%s: %d arguments in English, %d in Chinese", id, a, b)
		}
	}
}

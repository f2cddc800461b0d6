package remedy

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"unoom/internal/account"
	"unoom/internal/i18n"
	"unoom/internal/units"
)

const gib = units.GiB

// card returns the situation of a message: capacity, other processes, allocated,
// cached, free and tried, in GiB.
func card(capacity, others, allocated, cached, free, tried float64) Situation {
	a := account.Balance(0, units.FromGiB(capacity), units.MiB*10, []account.Part{
		{Kind: account.OtherProcesses, Bytes: units.FromGiB(others), PID: 4711},
		{Kind: account.Allocated, Bytes: units.FromGiB(allocated)},
		{Kind: account.Cached, Bytes: units.FromGiB(cached)},
		{Kind: account.Free, Bytes: units.FromGiB(free)},
	})
	slack := units.FromGiB(free + cached - tried)
	return Situation{Account: &a, Tried: units.FromGiB(tried), Slack: &slack}
}

func caused(s Situation, causes ...any) Situation {
	for i := 0; i < len(causes); i += 2 {
		s.Causes = append(s.Causes, Weighted{causes[i].(Cause), causes[i+1].(float64)})
	}
	return s
}

func codes(advice []Advice) []Code {
	var list []Code
	for _, a := range advice {
		list = append(list, a.Code)
	}
	return list
}

func find(t *testing.T, advice []Advice, code Code) Advice {
	t.Helper()
	for _, a := range advice {
		if a.Code == code {
			return a
		}
	}
	t.Fatalf("%s is not offered; offered: %v", code, codes(advice))
	return Advice{}
}

func TestTheListIsComplete(t *testing.T) {
	all := All()
	if len(all) < 40 {
		t.Errorf("%d remedies, want at least 40", len(all))
	}
	families := map[string]bool{}
	seen := map[Code]bool{}
	for _, r := range all {
		if seen[r.Code] {
			t.Errorf("%s is there twice", r.Code)
		}
		seen[r.Code] = true
		families[r.Code.Family()] = true
		if len(r.Cures)+len(r.Eases) == 0 {
			t.Errorf("%s answers no cause", r.Code)
		}
		for _, c := range slices.Concat(r.Cures, r.Eases) {
			if !slices.Contains(Causes(), c) {
				t.Errorf("%s answers %q, which is no cause", r.Code, c)
			}
		}
		if !r.Slowdown.Known() || r.Slowdown.Low > r.Slowdown.High {
			t.Errorf("%s: slowdown %v", r.Code, r.Slowdown)
		}
	}
	for _, want := range strings.Fields("batch accumulate release parallel recompute allocator hardware " +
		"precision optimizer offload attention loss sequence peft") {
		if !families[want] {
			t.Errorf("the family %s has no remedy", want)
		}
	}
}

func TestEveryCauseHasAnAnswer(t *testing.T) {
	for _, c := range Causes() {
		if len(For(c)) == 0 && c != Unknown {
			t.Errorf("%s: no remedy", c)
		}
	}
}

func TestEveryPageIsWholeInBothLanguages(t *testing.T) {
	for _, r := range All() {
		en, err := ReadPage(r.Code, i18n.English)
		if err != nil {
			t.Errorf("%s: %v", r.Code, err)
			continue
		}
		zh, err := ReadPage(r.Code, i18n.Chinese)
		if err != nil {
			t.Errorf("%s: %v", r.Code, err)
			continue
		}
		if !regexp.MustCompile(`\p{Han}`).MatchString(zh.Title + zh.Summary + zh.Drawback) {
			t.Errorf("%s: the Chinese page is not Chinese", r.Code)
		}
		if a, b := en.Ways(), zh.Ways(); len(a) != len(b) {
			t.Errorf("%s: %d ways to apply in English, %d in Chinese", r.Code, len(a), len(b))
		} else if _, any := a[""]; !any && len(a) != len(Frameworks()) {
			t.Errorf("%s: neither for any framework nor for all of them", r.Code)
		}
		for f := range en.Ways() {
			if a, b := open(en.Ways()[f]), open(zh.Ways()[f]); !slices.Equal(a, b) {
				t.Errorf("%s, %s: placeholders %v in English, %v in Chinese", r.Code, f, a, b)
			}
			if a, b := statements(en.Ways()[f]), statements(zh.Ways()[f]); !slices.Equal(a, b) {
				t.Errorf("%s, %s: the code differs between the languages:\n%q\n%q", r.Code, f, a, b)
			}
		}
		if a, b := strings.Count("\n"+en.Sources, "\n- "), strings.Count("\n"+zh.Sources, "\n- "); a != b || a == 0 {
			t.Errorf("%s: %d sources in English, %d in Chinese", r.Code, a, b)
		}
	}
}

// open lists the placeholders of a text.
func open(text string) []string {
	var list []string
	for _, m := range placeholder.FindAllStringSubmatch(text, -1) {
		if placeholders[m[1]] {
			list = append(list, m[1])
		}
	}
	return list
}

// statements returns the code of a text without its comments.
func statements(text string) []string {
	var list []string
	for i, block := range strings.Split(text, "```") {
		if i%2 == 0 {
			continue // prose
		}
		for line := range strings.Lines(block) {
			if line, _, _ = strings.Cut(line, "#"); strings.TrimSpace(line) != "" {
				list = append(list, strings.TrimSpace(line))
			}
		}
	}
	return list
}

func TestNoPageIsLeftOver(t *testing.T) {
	files, err := filepath.Glob("../../catalog/remedies/*.md")
	if err != nil || len(files) == 0 {
		t.Fatal("no pages found", err)
	}
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".md") // CODE.LANG
		if _, ok := Find(Code(strings.TrimSuffix(name, filepath.Ext(name)))); !ok {
			t.Errorf("%s: no such remedy", f)
		}
	}
}

func TestEveryReasonAndCauseHasItsWords(t *testing.T) {
	id := regexp.MustCompile(`(?:because|always|many|joinable|judgeLogits)\("([a-z0-9_.]+)"|ID: +"remedy\.why\.([a-z0-9_.]+)"|ID = "remedy\.why\.([a-z0-9_.]+)"`)
	files, _ := filepath.Glob("*.go")
	for _, lang := range []i18n.Lang{i18n.English, i18n.Chinese} {
		words := i18n.Load(lang)
		for _, f := range files {
			if strings.HasSuffix(f, "_test.go") {
				continue
			}
			source, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range id.FindAllStringSubmatch(string(source), -1) {
				if key := "remedy.why." + m[1] + m[2] + m[3]; !words.Has(key) {
					t.Errorf("%s: %s has no text in %s", f, key, lang)
				}
			}
		}
		for _, c := range Causes() {
			for _, kind := range []string{"cause", "means", "confirm"} {
				if key := "remedy." + kind + "." + string(c); !words.Has(key) {
					t.Errorf("%s has no text in %s", key, lang)
				}
			}
		}
	}
}

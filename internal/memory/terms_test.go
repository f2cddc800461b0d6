package memory

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// itemInSource finds where the engine counts storages under a name.
var itemInSource = regexp.MustCompile(`\b(?:as|id)\((?:Kind\()?[A-Za-z"]+\)?, "([^"]+)"\)|emptyStorage\([^"]*"([^"]+)"\)|itemKey\{\w+, "([^"]+)"\}`)

// The list of terms is what the engine counts, neither more nor less, and the
// document has a row for each.
func TestTermsAreComplete(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	counted := map[string]string{}
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") || f == "terms.go" {
			continue
		}
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range itemInSource.FindAllStringSubmatch(string(text), -1) {
			counted[m[1]+m[2]+m[3]] = f
		}
	}
	doc, err := os.ReadFile("../../docs/how-it-estimates.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, term := range Terms() {
		if listed[term.Name] {
			t.Errorf("%s: is there twice", term.Name)
		}
		listed[term.Name] = true
		if counted[term.Name] == "" {
			t.Errorf("%s: is a term that nothing counts", term.Name)
		}
		row := "| " + term.Name + " | " + term.What + " | " + term.Source + " |"
		if !strings.Contains(string(doc), row) {
			t.Errorf("docs/how-it-estimates.md lacks the row\n%s", row)
		}
	}
	for name, file := range counted {
		if !listed[name] {
			t.Errorf("%s counts %q, which is not among Terms", file, name)
		}
	}
}

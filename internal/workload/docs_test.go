package workload

import (
	"os"
	"strings"
	"testing"
)

// Every field, and every value of those that have a few, stands in the manual.
func TestTheManualHasEveryField(t *testing.T) {
	doc, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(doc)
	for _, f := range Fields() {
		if !strings.Contains(text, "`"+string(f)+"`") {
			t.Errorf("docs/configuration.md lacks %s", f)
		}
		for _, v := range Choices()[f] {
			if !strings.Contains(text, v) {
				t.Errorf("docs/configuration.md lacks the value %s of %s", v, f)
			}
		}
	}
	for _, k := range []Kind{KindTransformers, KindAccelerate, KindTorchtune, KindLitGPT, KindTorchtitan, KindPEFT} {
		if !strings.Contains(text, "| "+string(k)+" |") {
			t.Errorf("docs/configuration.md lacks the form %s", k)
		}
	}
}

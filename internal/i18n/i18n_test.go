package i18n

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
)

func TestLanguagesHaveTheSameMessages(t *testing.T) {
	en, zh := Load(English).texts, Load(Chinese).texts
	placeholder := regexp.MustCompile(`\{\d\}`)
	for id, text := range en {
		other, ok := zh[id]
		if !ok {
			t.Errorf("%s has no Chinese text", id)
			continue
		}
		a, b := placeholder.FindAllString(text, -1), placeholder.FindAllString(other, -1)
		slices.Sort(a)
		slices.Sort(b)
		if a, b = slices.Compact(a), slices.Compact(b); !slices.Equal(a, b) {
			t.Errorf("%s: placeholders %v in English, %v in Chinese", id, a, b)
		}
	}
	for id := range zh {
		if _, ok := en[id]; !ok {
			t.Errorf("%s has no English text", id)
		}
	}
}

func TestFilesAreYAML(t *testing.T) {
	entries, err := files.ReadDir("messages")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		data, err := files.ReadFile("messages/" + e.Name())
		if err != nil {
			t.Fatal(err)
		}
		want, got := map[string]string{}, map[string]string{}
		if err := yaml.Unmarshal(data, &want); err != nil {
			t.Errorf("%s: %v", e.Name(), err)
		}
		if err := parse(string(data), got); err != nil {
			t.Errorf("%s: %v", e.Name(), err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: yaml and our reader differ:\n%s", e.Name(), diff)
		}
	}
}

func TestTextFillsPlaceholdersOnce(t *testing.T) {
	c := &Catalogue{texts: map[string]string{"x": "{1} after {0}"}}
	if got, want := c.Text("x", "{1}", "b"), "b after {1}"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := c.Text("no.such"); got != "no.such" {
		t.Errorf("got %q", got)
	}
}

func TestFromLocale(t *testing.T) {
	for _, c := range []struct {
		env  string
		want Lang
	}{
		{"LANG=zh_CN.UTF-8", Chinese},
		{"LANG=zh_CN.UTF-8 LC_ALL=C", English},
		{"LANG=de_DE.UTF-8", English},
		{"", English},
	} {
		getenv := func(name string) string {
			for kv := range strings.FieldsSeq(c.env) {
				if v, ok := strings.CutPrefix(kv, name+"="); ok {
					return v
				}
			}
			return ""
		}
		if got := FromLocale(getenv); got != c.want {
			t.Errorf("%q: %v, want %v", c.env, got, c.want)
		}
	}
}

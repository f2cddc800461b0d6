// Package i18n turns a message id and its arguments into English or Chinese.
//
// The catalogue is the folder messages/: one pair of files for each room of the
// program, NAME.en.yaml and NAME.zh.yaml, each a flat list of `id: "text"` lines.
// A text names its arguments as {0}, {1} …, so that a translation may change
// their order. Codes, JSON and errors meant for scripts are never translated.
package i18n

import (
	"embed"
	"fmt"
	"strconv"
	"strings"
)

//go:embed messages/*.yaml
var files embed.FS

// A Lang is a language that unoom speaks.
type Lang string

// The languages. A new one needs its files in messages/ and its pages in
// catalog/remedies.
const (
	English Lang = "en"
	Chinese Lang = "zh"
)

// Parse reads the value of --lang.
func Parse(text string) (Lang, error) {
	switch Lang(strings.ToLower(text)) {
	case English:
		return English, nil
	case Chinese:
		return Chinese, nil
	}
	return "", fmt.Errorf("language %q: unoom speaks en and zh", text)
}

// FromLocale chooses the language from the environment, in the order that
// gettext uses: LC_ALL, LC_MESSAGES, LANG.
func FromLocale(getenv func(string) string) Lang {
	for _, name := range []string{"LC_ALL", "LC_MESSAGES", "LANG"} {
		if v := strings.ToLower(getenv(name)); v != "" {
			if strings.HasPrefix(v, "zh") {
				return Chinese
			}
			return English
		}
	}
	return English
}

// A Catalogue holds the messages of one language.
type Catalogue struct {
	lang  Lang
	texts map[string]string
}

// Load reads the embedded messages of a language.
func Load(lang Lang) *Catalogue {
	c := &Catalogue{lang: lang, texts: map[string]string{}}
	entries, _ := files.ReadDir("messages") // embedded: cannot fail
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), "."+string(lang)+".yaml") {
			continue
		}
		data, _ := files.ReadFile("messages/" + e.Name())
		if err := parse(string(data), c.texts); err != nil {
			panic("i18n: " + e.Name() + ": " + err.Error()) // a test reads every file
		}
	}
	return c
}

// parse reads `id: "text"` lines. It is a subset of YAML, read by hand because
// a general YAML parser would take longer than the rest of the program's start.
// A test holds it against the general parser.
func parse(data string, into map[string]string) error {
	n := 0
	for line := range strings.Lines(data) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		id, quoted, ok := strings.Cut(line, ": ")
		if !ok {
			return fmt.Errorf("line %d: want id: \"text\"", n)
		}
		text, err := strconv.Unquote(quoted)
		if err != nil {
			return fmt.Errorf("line %d: the text is not quoted", n)
		}
		if _, twice := into[id]; twice {
			return fmt.Errorf("line %d: %s is there twice", n, id)
		}
		into[id] = text
	}
	return nil
}

// Lang returns the language of the catalogue.
func (c *Catalogue) Lang() Lang { return c.lang }

// Has reports whether the catalogue has a message with this id.
func (c *Catalogue) Has(id string) bool { _, ok := c.texts[id]; return ok }

// Under returns the messages whose ids begin with prefix, by the rest of their
// ids, for a page that fills in the arguments itself.
func (c *Catalogue) Under(prefix string) map[string]string {
	out := map[string]string{}
	for id, text := range c.texts {
		if rest, ok := strings.CutPrefix(id, prefix); ok {
			out[rest] = text
		}
	}
	return out
}

// Text returns the message with its arguments filled in. An unknown id is
// returned as it is, so that a gap is seen, not hidden.
func (c *Catalogue) Text(id string, args ...any) string {
	text, ok := c.texts[id]
	if !ok {
		return id
	}
	if len(args) == 0 || !strings.Contains(text, "{") {
		return text
	}
	pairs := make([]string, 0, 2*len(args))
	for i, a := range args {
		pairs = append(pairs, "{"+strconv.Itoa(i)+"}", fmt.Sprint(a))
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

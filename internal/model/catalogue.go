package model

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"unoom/catalog"
)

// An Entry is one model of the catalogue.
type Entry struct {
	Name    string   `json:"name"`
	Aliases []string `json:"aliases"`
	// Params is the published number of parameters.
	Params int64 `json:"params"`
	// ParamsFrom says where the count was taken; catalog/models/README.md has
	// the values.
	ParamsFrom string          `json:"params_from"`
	Config     json.RawMessage `json:"config"`
}

// Model builds the entry's network.
func (e *Entry) Model(opt Options) (*Model, error) {
	if bytes.Contains(e.Config, []byte(`"builder"`)) {
		spec, err := specOf(e.Config)
		if err != nil {
			return nil, &ConfigError{Name: e.Name, Msg: err.Error()}
		}
		return FromVision(e.Name, *spec)
	}
	return Parse(e.Name, e.Config, opt)
}

// Catalogue is the list of well-known models.
type Catalogue []Entry

// Published returns the catalogue that the program carries. It is parsed at each
// call (about 2 ms); callers keep it.
func Published() (Catalogue, error) { return ParseCatalogue([]byte(catalog.Models)) }

// ParseCatalogue reads a catalogue in JSON.
func ParseCatalogue(data []byte) (Catalogue, error) {
	var c Catalogue
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, fmt.Errorf("catalogue of models: %w", err)
	}
	return c, nil
}

// An UnknownModelError says that no model of the catalogue has a name, or that
// several could be meant.
type UnknownModelError struct {
	Name    string
	Several []string // models that the name could mean
	Nearest []string // models whose names are spelled most like it
}

func (e *UnknownModelError) Error() string {
	if len(e.Several) > 0 {
		return fmt.Sprintf("model %q: could be %s", e.Name, strings.Join(e.Several, ", "))
	}
	return fmt.Sprintf("model %q is not in the catalogue", e.Name)
}

// Find returns the model of a name: the catalogue's, a publisher's id, or either
// written without case, dashes and owner.
func (c Catalogue) Find(name string) (*Entry, error) {
	if len(name) > 256 {
		name = name[:256]
	}
	for _, key := range keys(name) {
		for i := range c {
			if c[i].has(key) {
				return &c[i], nil
			}
		}
	}
	unknown := &UnknownModelError{Name: name}
	key := plain(name)
	for i := range c {
		if len(key) > 2 && strings.HasPrefix(plain(c[i].Name), key) {
			unknown.Several = append(unknown.Several, c[i].Name)
		}
	}
	if len(unknown.Several) == 1 {
		return c.Find(unknown.Several[0])
	}
	if len(unknown.Several) == 0 {
		unknown.Nearest = c.nearest(key, 4)
	}
	return nil, unknown
}

// has reports whether key is the plain form of one of the entry's names.
func (e *Entry) has(key string) bool {
	return plain(e.Name) == key || slices.ContainsFunc(e.Aliases, func(a string) bool { return plain(a) == key })
}

// plain returns a name without owner, case, and separators. A dot between two
// digits stays, so that 2.5-7B and 25-7B differ.
func plain(name string) string {
	name = strings.ToLower(name)
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		name = name[i+1:]
	}
	var b strings.Builder
	for i := range len(name) {
		switch c := name[i]; {
		case c == '-', c == '_', c == ' ', c == ':':
		case c == '.' && (i == 0 || i == len(name)-1 || !digit(name[i-1]) || !digit(name[i+1])):
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

func digit(c byte) bool { return '0' <= c && c <= '9' }

// keys returns the plain forms to look a name up by: the whole, then without
// what publishers append to say which tuning of the same network it is.
func keys(name string) []string {
	key := plain(name)
	out := []string{key}
	for again := true; again; {
		again = false
		for _, suffix := range []string{"4bit", "8bit", "bnb", "unsloth", "gptq", "awq", "hf", "instruct", "chat", "base", "it", "pt", "fp16", "bf16"} {
			if rest, ok := strings.CutSuffix(key, suffix); ok && len(rest) > 3 {
				key, again = rest, true
				out = append(out, key)
			}
		}
	}
	return out
}

// nearest returns up to n models of which a name is spelled most like key.
func (c Catalogue) nearest(key string, n int) []string {
	if len(key) > 64 {
		key = key[:64]
	}
	type scored struct {
		name string
		d    int
	}
	var found []scored
	for i := range c {
		best := distance(key, plain(c[i].Name))
		for _, a := range c[i].Aliases {
			best = min(best, distance(key, plain(a)))
		}
		if best <= max(1, len(key)/3) {
			found = append(found, scored{c[i].Name, best})
		}
	}
	slices.SortStableFunc(found, func(a, b scored) int { return a.d - b.d })
	var out []string
	for _, f := range found[:min(n, len(found))] {
		out = append(out, f.name)
	}
	return out
}

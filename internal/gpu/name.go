package gpu

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A Request is a number of cards of one kind.
type Request struct {
	Count int // at least 1
	Card  Card
}

// A NameError says why a text names no card.
type NameError struct {
	Text    string
	Msg     string
	Choices []string // cards that it could mean, or that are spelled most like it
}

func (e *NameError) Error() string {
	return fmt.Sprintf("GPU %q: %s", e.Text, e.Msg)
}

// countMost is more cards than any job has.
const countMost = 1 << 20

// Find reads "[N x] NAME": "rtx-4090", "8xh100-80gb", "2 x A100 40GB",
// "h100:8", or a name as nvidia-smi prints it.
func (c Catalogue) Find(text string) (Request, error) {
	if len(text) > 128 {
		return Request{}, &NameError{Text: text[:128] + "…", Msg: "is too long for a name"}
	}
	count, name, err := splitCount(text)
	if err != nil {
		return Request{}, err
	}
	card, err := c.card(name)
	if err == nil {
		return Request{count, *card}, nil
	}
	// Where the text without its count is no card, the text as a whole may be one
	// ("MI300X" has an x too), or the number was the card ("3090x2").
	if whole, errWhole := c.card(text); errWhole == nil {
		return Request{1, *whole}, nil
	}
	if i := strings.LastIndexAny(text, "xX*×"); i > 0 {
		n, errCount := strconv.Atoi(strings.TrimLeft(text[i:], "xX*× "))
		if last, errLast := c.card(text[:i]); errCount == nil && errLast == nil && n > 0 && n <= countMost {
			return Request{n, *last}, nil
		}
	}
	return Request{}, err
}

// splitCount cuts a leading "8x" or a trailing "x8" or ":8" off.
func splitCount(text string) (int, string, error) {
	s := strings.TrimSpace(strings.ReplaceAll(text, "×", "x"))
	number := func(digits, rest string) (int, string, error) {
		n, err := strconv.Atoi(digits)
		if err != nil || n < 1 || n > countMost {
			return 0, "", &NameError{Text: text, Msg: fmt.Sprintf("%q is not a number of GPUs", digits)}
		}
		return n, strings.TrimSpace(rest), nil
	}
	if i := strings.IndexFunc(s, notDigit); i > 0 {
		rest := strings.TrimLeft(s[i:], " ")
		if len(rest) > 1 && strings.ContainsRune("xX*", rune(rest[0])) {
			return number(s[:i], rest[1:])
		}
	}
	if i := strings.LastIndexFunc(s, notDigit); i > 0 && i < len(s)-1 {
		rest := s[:i]
		letters := strings.IndexFunc(rest, func(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' }) >= 0
		// "h100:8", "h100 x8" and "h100x8", but not "rtx4090".
		if s[i] == ':' || strings.ContainsRune("xX*", rune(s[i])) && letters && rest[len(rest)-1] != 't' && rest[len(rest)-1] != 'T' {
			return number(s[i+1:], rest)
		}
	}
	return 1, s, nil
}

func notDigit(r rune) bool { return r < '0' || r > '9' }

// card returns the one card of a name.
func (c Catalogue) card(name string) (*Card, error) {
	key := plain(name)
	if key == "" {
		return nil, &NameError{Text: name, Msg: "is not the name of a card"}
	}
	for _, k := range []string{key, strings.TrimPrefix(strings.TrimPrefix(key, "rtx"), "gtx")} {
		for i := range c {
			if k != "" && c[i].has(k) {
				return &c[i], nil
			}
		}
	}
	var found []int
	query := tokens(name)
	for i := range c {
		if len(query) > 0 && c[i].matches(query) {
			found = append(found, i)
		}
	}
	if len(found) == 1 {
		return &c[found[0]], nil
	}
	if len(found) > 1 {
		e := &NameError{Text: name, Msg: "could be more than one card"}
		for _, i := range found {
			e.Choices = append(e.Choices, c[i].Name)
		}
		return nil, e
	}
	return nil, &NameError{Text: name, Msg: "is not in the catalogue", Choices: c.nearest(key)}
}

// has reports whether key is the plain form of one of the card's names.
func (c *Card) has(key string) bool {
	return plain(c.Name) == key || slices.ContainsFunc(c.Aliases, func(a string) bool { return plain(a) == key })
}

// matches reports whether every word of a query is one of the card's. A slice or
// a laptop card is meant only where the query says so.
func (c *Card) matches(query []string) bool {
	words := tokens(c.Name)
	for _, a := range c.Aliases {
		words = append(words, tokens(a)...)
	}
	words = append(words, strconv.FormatInt(c.NominalGB, 10)+"gb")
	for _, q := range query {
		if !slices.Contains(words, q) {
			return false
		}
	}
	slice := slices.ContainsFunc(query, func(q string) bool { return q == "mig" || strings.Contains(q, "g.") })
	return (c.MIG != "") == slice && c.Laptop == slices.Contains(query, "laptop")
}

// noise are words of full names that tell no cards apart.
func noise() []string {
	return []string{"nvidia", "geforce", "tesla", "amd", "instinct", "radeon", "gpu", "gpus", "generation", "edition", "workstation",
		"server", "graphics", "hbm2", "hbm2e", "hbm3", "hbm3e", "tensor", "core", "max", "q", "design", "with", "oam"}
}

// tokens cuts a name into words: "NVIDIA A100-SXM4-40GB" → a100, sxm, 40gb.
func tokens(name string) []string {
	words := strings.FieldsFunc(strings.ToLower(name), func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '.')
	})
	skip := noise()
	var out []string
	for i := 0; i < len(words); i++ {
		w := strings.Trim(words[i], ".")
		if w == "" || slices.Contains(skip, w) {
			continue
		}
		if i+1 < len(words) && (words[i+1] == "gb" || words[i+1] == "gib" || words[i+1] == "g") && strings.IndexFunc(w, notDigit) < 0 {
			w += "gb" // "40 GB"
			i++
		}
		switch {
		case strings.HasPrefix(w, "sxm"):
			w = "sxm"
		case strings.HasSuffix(w, "gib"):
			w = strings.TrimSuffix(w, "gib") + "gb"
		case len(w) > 1 && w[len(w)-1] == 'g' && strings.IndexFunc(w[:len(w)-1], notDigit) < 0:
			w += "b" // "80g"
		case w == "mobile":
			w = "laptop"
		}
		out = append(out, w)
	}
	return out
}

// plain is a name without vendor, case and separators.
func plain(name string) string {
	var b strings.Builder
	for _, w := range tokens(name) {
		b.WriteString(w)
	}
	return b.String()
}

// nearest lists up to four cards whose names are spelled most like key.
func (c Catalogue) nearest(key string) []string {
	type scored struct {
		name string
		d    int
	}
	if len(key) > 40 {
		key = key[:40]
	}
	var found []scored
	for i := range c {
		best := 99
		for _, name := range append([]string{c[i].Name}, c[i].Aliases...) {
			best = min(best, edits(key, plain(name)))
		}
		if best <= max(1, len(key)/3) && c[i].MIG == "" {
			found = append(found, scored{c[i].Name, best})
		}
	}
	slices.SortStableFunc(found, func(a, b scored) int { return a.d - b.d })
	var out []string
	for _, f := range found[:min(4, len(found))] {
		out = append(out, f.name)
	}
	return out
}

// edits is the number of single-letter changes between two short texts, where
// exchanging two neighbours is one.
func edits(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if digitOf(a[i-1]) == digitOf(b[j-1]) {
				cost = 0
			}
			rows[i][j] = min(rows[i-1][j-1]+cost, rows[i-1][j]+1, rows[i][j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}

// digitOf maps the letters that are mistaken for digits to them.
func digitOf(c byte) byte {
	switch c {
	case 'o':
		return '0'
	case 'l':
		return '1'
	}
	return c
}

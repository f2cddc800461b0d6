package text

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestWrapBreaksBesideChineseCharacters(t *testing.T) {
	for _, c := range []struct {
		text, want string
		width      int
	}{
		{"one two three", "one two\nthree", 8},
		{"abcdefghijklmno", "abcdefghij\nklmno", 10},
		{"在 step() 期间会多占一份。fused=True 不占", "在 step() 期间会多\n占一份。fused=True\n不占", 18},
		{"一二三四五。六", "一二三四\n五。六", 10},                                    // no line begins with 。
		{"一二三四（五六）", "一二三四\n（五六）", 10},                                  // none ends with （
		{"see https://a.example/b/c", "see\nhttps://a.example/b/c", 10}, // an address stays whole
		{"  indented", "  indented", 20},
		{"", "", 20},
		{"a\n\nb", "a\n\nb", 20},
		// A figure and its unit are one, and so is a flag.
		{"most likely (about 69 %).", "most likely (about\n69 %).", 23},
		{"it asked for 10.00 GiB, then", "it asked for\n10.00 GiB, then", 20},
		{"set --per-device-batch 2", "set\n--per-device-batch 2", 20},
	} {
		if got := Wrap(c.text, c.width); got != c.want {
			t.Errorf("Wrap(%q, %d) = %q, want %q", c.text, c.width, got, c.want)
		}
	}
}

func TestWrapKeepsEveryCharacterWithinTheWidth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOfN(rapid.SampledFrom([]rune("ab ，。（）显存占用x=1,")), 0, 80, -1).Draw(t, "text")
		width := rapid.IntRange(10, 40).Draw(t, "width")
		got := Wrap(text, width)
		for line := range strings.SplitSeq(got, "\n") {
			if n := Cells(line); n > width {
				t.Fatalf("line of %d cells in a width of %d: %q", n, width, line)
			}
		}
		squeeze := func(s string) string { return strings.NewReplacer(" ", "", "\n", "").Replace(s) }
		if squeeze(got) != squeeze(text) {
			t.Fatalf("characters changed: %q became %q", text, got)
		}
	})
}

func TestWrapDoesNotCutEscapes(t *testing.T) {
	got := Wrap(Style(Bad, "alpha beta")+" gamma", 11)
	if Cells(got) > 11 || !strings.Contains(got, "gamma") || strings.Count(got, "\n") != 1 {
		t.Errorf("got %q", got)
	}
}

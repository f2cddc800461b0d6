package smi

import (
	"testing"

	"unoom/internal/units"
)

func TestParse(t *testing.T) {
	const two = "0, GPU-aaaa, NVIDIA H100 80GB HBM3, 81559, 4\n1, GPU-bbbb, NVIDIA H100 80GB HBM3, 81559, 70000\n"
	for _, c := range []struct {
		name, text, visible string
		want                []int
	}{
		{"all", two, "", []int{0, 1}},
		{"by number", two, "1", []int{1}},
		{"by a beginning of the UUID", two, "GPU-aa", []int{0}},
		{"none is left", two, "-1", nil},
		{"a card that shares the host's memory", "0, GPU-cccc, NVIDIA GB10, [N/A], [N/A]\n", "", nil},
		{"no devices", "No devices were found\n", "", nil},
	} {
		got, err := Parse(c.text, c.visible)
		if err != nil || len(got) != len(c.want) {
			t.Errorf("%s: %v, %v", c.name, got, err)
			continue
		}
		for i, d := range got {
			if d.Index != c.want[i] || d.Total != 81559*units.MiB {
				t.Errorf("%s: %+v", c.name, d)
			}
		}
	}
}

package memory

import (
	"testing"

	"unoom/internal/units"
)

// A context with every kernel loaded is larger than one that loads them when
// they are needed; a reading of the machine itself stands as it is.
func TestContextByVersion(t *testing.T) {
	e, err := New()
	if err != nil {
		t.Fatal(err)
	}
	context := func(versions map[string]string, measured bool) units.Bytes {
		w := segmentation(t, "fcn_r18-d8_512x1024_80k_cityscapes", 1, 64, 64)
		w.Versions = versions
		w.GPU.Vendor, w.GPU.Context, w.GPU.ContextMeasured = "nvidia", 500*units.MiB, measured
		lib, err := e.libraryOf(w)
		if err != nil {
			t.Fatal(err)
		}
		return contextOf(w, lib).Bytes.Mid
	}
	lazy, eager := 500*units.MiB, (500+900+350)*units.MiB
	for _, c := range []struct {
		name     string
		versions map[string]string
		measured bool
		want     units.Bytes
	}{
		{"nothing is stated", nil, false, lazy},
		{"torch 2.4", map[string]string{"torch": "2.4"}, false, lazy},
		{"torch 1.10", map[string]string{"torch": "1.10"}, false, eager},
		{"torch 2 of 2024", map[string]string{"torch": "2.x", "date": "2024"}, false, eager},
		{"torch 2 of 2025", map[string]string{"torch": "2.x", "date": "2025"}, false, lazy},
		{"torch 1.10, measured", map[string]string{"torch": "1.10"}, true, lazy},
	} {
		if got := context(c.versions, c.measured); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

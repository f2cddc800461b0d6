package gpu

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"unoom/internal/units"
)

func published(t testing.TB) Catalogue {
	t.Helper()
	c, err := Published()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestTheCatalogueIsSound(t *testing.T) {
	c := published(t)
	cards, slicesOf := 0, 0
	seen := map[string]string{}
	for i := range c {
		card := &c[i]
		if err := card.check(); err != nil {
			t.Error(err)
		}
		if card.MIG != "" {
			slicesOf++
			if parent, err := c.Find(card.MIG); err != nil || parent.Card.MemoryMiB < card.MemoryMiB {
				t.Errorf("%s is a slice of %s (%v)", card.Name, card.MIG, err)
			}
		} else {
			cards++
		}
		if gib := card.Memory().GiB(); gib > float64(card.NominalGB)*1.01 || gib < float64(card.NominalGB)*0.85 {
			t.Errorf("%s: %.1f GiB for a card of %d GB", card.Name, gib, card.NominalGB)
		}
		if card.BandwidthGBs <= 0 || card.SMs <= 0 || card.TFLOPS.FP32 <= 0 || card.PCIeGBs <= 0 || card.PerNode < 1 || card.ContextMiB <= 0 || card.Verified == "" {
			t.Errorf("%s: a figure is missing: %+v", card.Name, card)
		}
		own := map[string]bool{}
		for _, name := range append([]string{card.Name}, card.Aliases...) {
			own[plain(name)] = true
		}
		for key := range own {
			if other, twice := seen[key]; twice {
				t.Errorf("%s and %s both answer to %q", card.Name, other, key)
			}
			seen[key] = card.Name
		}
	}
	if cards < 60 || slicesOf < 20 {
		t.Errorf("%d cards and %d slices", cards, slicesOf)
	}
}

func TestFindReadsNamesAsPeopleAndToolsWriteThem(t *testing.T) {
	c := published(t)
	for text, want := range map[string]struct {
		count int
		name  string
	}{
		"rtx-4090": {1, "RTX-4090"}, "4090": {1, "RTX-4090"}, "RTX4090": {1, "RTX-4090"}, "RTX 4090": {1, "RTX-4090"},
		"NVIDIA GeForce RTX 4090": {1, "RTX-4090"}, "NVIDIA GeForce RTX 4090 Laptop GPU": {1, "RTX-4090-Laptop"},
		"3090x2": {2, "RTX-3090"}, "2080 x 4": {4, "RTX-2080"}, "gtx1650": {1, "GTX-1650"}, "NVIDIA GeForce RTX 3060 Laptop GPU": {1, "RTX-3060-Laptop"}, "GeForce GTX 1060 6GB": {1, "GTX-1060-6GB"},
		"8xh100-80gb": {8, "H100-SXM-80GB"}, "8 x H100": {8, "H100-SXM-80GB"}, "h100:8": {8, "H100-SXM-80GB"}, "H100x8": {8, "H100-SXM-80GB"},
		"64×B200": {64, "B200"}, "NVIDIA H100 80GB HBM3": {1, "H100-SXM-80GB"}, "NVIDIA H100 PCIe": {1, "H100-PCIe-80GB"},
		"2 x A100 40GB": {2, "A100-SXM-40GB"}, "NVIDIA A100-SXM4-80GB": {1, "A100-SXM-80GB"}, "NVIDIA A100-PCIE-40GB": {1, "A100-PCIe-40GB"},
		"A100 80G": {1, "A100-SXM-80GB"}, "a100 pcie 80 GiB": {1, "A100-PCIe-80GB"},
		"Tesla V100-SXM2-32GB": {1, "V100-SXM-32GB"}, "Tesla T4": {1, "T4-16GB"}, "NVIDIA L40S": {1, "L40S-48GB"}, "4xA10G": {4, "A10G-24GB"},
		"NVIDIA RTX A6000": {1, "RTX-A6000"}, "NVIDIA RTX 6000 Ada Generation": {1, "RTX-6000-Ada"},
		"NVIDIA RTX PRO 6000 Blackwell Workstation Edition": {1, "RTX-PRO-6000-Blackwell"},
		"mi300x": {1, "MI300X-192GB"}, "8xMI300X": {8, "MI300X-192GB"}, "AMD Instinct MI300X OAM": {1, "MI300X-192GB"},
		"NVIDIA A100-SXM4-80GB MIG 3g.40gb": {1, "A100-SXM-80GB-3g.40gb"}, "3080 Ti": {1, "RTX-3080-Ti"}, "rtx3060": {1, "RTX-3060-12GB"},
	} {
		got, err := c.Find(text)
		if err != nil || got.Count != want.count || got.Card.Name != want.name {
			t.Errorf("%q: %d x %q, %v; want %d x %q", text, got.Count, got.Card.Name, err, want.count, want.name)
		}
	}
}

func TestAnAmbiguousNameListsTheChoices(t *testing.T) {
	c := published(t)
	for text, want := range map[string][]string{
		"a100": {"A100-SXM-80GB", "A100-PCIe-80GB", "A100-SXM-40GB", "A100-PCIe-40GB"}, "8 x v100": {"V100-SXM-32GB", "V100-SXM-16GB"},
		"rtx 6000": {"RTX-PRO-6000-Blackwell", "RTX-6000-Ada"}, "mig 3g.40gb": {"A100-SXM-80GB-3g.40gb", "H100-SXM-80GB-3g.40gb"},
	} {
		_, err := c.Find(text)
		e, ok := errors.AsType[*NameError](err)
		if !ok {
			t.Errorf("%q: %v; want an error with choices", text, err)
			continue
		}
		for _, w := range want {
			if !slices.Contains(e.Choices, w) {
				t.Errorf("%q: choices %v, want %s among them", text, e.Choices, w)
			}
		}
	}
}

func TestASlipNamesTheNearest(t *testing.T) {
	c := published(t)
	for text, want := range map[string]string{"rtx-4909": "RTX-4090", "h10O": "H100-SXM-80GB", "a6OOO": "RTX-A6000", "l4os": "L40S-48GB"} {
		_, err := c.Find(text)
		if e, ok := errors.AsType[*NameError](err); !ok || !slices.Contains(e.Choices, want) {
			t.Errorf("%q: %+v; want %s among the nearest", text, err, want)
		}
	}
	for _, text := range []string{"", "x", "0xh100", "99999999xh100", "8x", "banana", strings.Repeat("a", 500)} {
		if got, err := c.Find(text); err == nil {
			t.Errorf("%q: %s; want an error", text, got.Card.Name)
		}
	}
}

func TestCapacities(t *testing.T) {
	c := published(t)
	h, err := c.Find("h100")
	if err != nil {
		t.Fatal(err)
	}
	// "GPU 0 has a total capacity of 79.19 GiB" in messages from H100s.
	if got := h.Card.Total().String(); got != "79.19 GiB" {
		t.Errorf("H100: %s", got)
	}
	if h.Card.CUBLASWorkspace() != 32*units.MiB {
		t.Errorf("H100: workspace %s", h.Card.CUBLASWorkspace())
	}
	g, err := c.Find("4090")
	if err != nil {
		t.Fatal(err)
	}
	if g.Card.CUBLASWorkspace() != 8519680 {
		t.Errorf("4090: workspace %d", g.Card.CUBLASWorkspace())
	}
}

func TestAUsersCardsReplaceOurs(t *testing.T) {
	own, err := ParseYAML("mine.yaml", []byte("- {name: RTX-4090, memory_mib: 49140, usd_hour: [0.1, 0.2]}\n- {name: My-Card, aliases: [mine], memory_mib: 1000}\n"))
	if err != nil {
		t.Fatal(err)
	}
	c := published(t).With(own)
	if r, err := c.Find("rtx 4090"); err != nil || r.Card.MemoryMiB != 49140 || r.Card.TorchMiB != 49140 {
		t.Errorf("RTX-4090: %+v, %v", r, err)
	}
	if r, err := c.Find("mine"); err != nil || r.Card.Name != "My-Card" {
		t.Errorf("mine: %+v, %v", r, err)
	}
	if len(c) != len(published(t))+1 {
		t.Errorf("%d cards", len(c))
	}
	for _, bad := range []string{"- {name: A}", "- {memory_mib: 5}", "- {name: A, memory_mib: 5, colour: red}", "- {name: A, memory_mib: 5, torch_mib: 6}", "x: [", "- {name: A, memory_mib: -1}"} {
		if _, err := ParseYAML("mine.yaml", []byte(bad)); err == nil || !strings.Contains(err.Error(), "mine.yaml") {
			t.Errorf("%s: %v; want an error that names the file", bad, err)
		}
	}
}

func FuzzFind(f *testing.F) {
	for _, s := range []string{"8xh100-80gb", "2 x A100 40GB", "h100:8", "NVIDIA A100-SXM4-80GB MIG 3g.40gb", "××x", "mi300x8"} {
		f.Add(s)
	}
	c := published(f)
	f.Fuzz(func(t *testing.T, text string) {
		r, err := c.Find(text)
		if err == nil && (r.Count < 1 || r.Card.Name == "") {
			t.Fatalf("%q: %+v", text, r)
		}
	})
}

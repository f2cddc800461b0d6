// Package gpu says what a card is: its memory as the driver and as torch count
// it, its rates, what joins several of it, and what it costs. It reads a card's
// name as people and tools write it ("8xh100-80gb", "rtx 4090", "NVIDIA
// A100-SXM4-40GB"), and never guesses between cards that differ: an ambiguous
// name is an error that lists the choices.
//
// The figures come from catalog/gpus, which a user's own file may override.
// Devices of this machine are the business of gpu/nvml and gpu/smi.
package gpu

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"

	"unoom/catalog"
	"unoom/internal/units"
)

// A Card is one kind of GPU, or a MIG slice of one.
type Card struct {
	Name    string   `json:"name"`
	Aliases []string `json:"aliases"`
	Vendor  string   `json:"vendor"`
	Arch    string   `json:"arch"`
	SM      string   `json:"sm,omitempty"` // compute capability, "" on AMD

	NominalGB    int64   `json:"nominal_gb"`
	MemoryMiB    int64   `json:"memory_mib"` // as nvidia-smi says
	TorchMiB     int64   `json:"torch_mib"`  // as torch's total_memory says
	BandwidthGBs float64 `json:"bandwidth_gbs"`
	SMs          int     `json:"sms"`
	TFLOPS       Rates   `json:"tflops"`

	Link       string  `json:"link"`
	LinkGBs    float64 `json:"link_gbs,omitempty"` // one way; 0: PCIe alone
	PCIeGBs    float64 `json:"pcie_gbs"`
	PerNode    int     `json:"per_node"`
	ContextMiB int64   `json:"context_mib"`

	USDHour  []float64 `json:"usd_hour,omitempty"` // lowest and highest; empty: unknown
	Laptop   bool      `json:"laptop,omitempty"`
	MIG      string    `json:"mig,omitempty"` // the card of which this is a slice
	Note     string    `json:"note,omitempty"`
	Verified string    `json:"verified"` // where the memory figures were seen, "no"
}

// Rates are dense TFLOP/s with float32 accumulation; 0: no matrix units for it.
type Rates struct {
	BF16 float64 `json:"bf16,omitempty"`
	FP16 float64 `json:"fp16,omitempty"`
	FP8  float64 `json:"fp8,omitempty"`
	TF32 float64 `json:"tf32,omitempty"`
	FP32 float64 `json:"fp32,omitempty"`
}

// Memory is the total as the driver reports it.
func (c *Card) Memory() units.Bytes { return units.Bytes(c.MemoryMiB) * units.MiB }

// Total is the total as torch reports it: what an out-of-memory message calls
// the total capacity.
func (c *Card) Total() units.Bytes { return units.Bytes(c.TorchMiB) * units.MiB }

// Context is the CUDA context of one process.
func (c *Card) Context() units.Bytes { return units.Bytes(c.ContextMiB) * units.MiB }

// Usable is what is left of Total for one process after its context, on a card
// that nothing else uses.
func (c *Card) Usable() units.Bytes { return c.Total() - c.Context() }

// CUBLASWorkspace is what one cuBLAS handle allocates from torch's allocator
// for each stream: 32 MiB from compute capability 9, else 2×4096+8×16 KiB.
//
// Source: pytorch aten/src/ATen/cuda/CublasHandlePool.cpp,
// getChosenWorkspaceSize and parseChosenWorkspaceSize.
func (c *Card) CUBLASWorkspace() units.Bytes {
	switch major, _, _ := strings.Cut(c.SM, "."); major {
	case "9", "10", "12":
		return 32 * units.MiB
	}
	if c.Vendor == "amd" {
		return 32 * units.MiB
	}
	return 2*4096*units.KiB + 8*16*units.KiB
}

// Custom is a card of which only the memory is known.
func Custom(capacity units.Bytes) Card {
	return Card{Name: capacity.String(), MemoryMiB: int64(capacity / units.MiB), TorchMiB: int64(capacity / units.MiB), Verified: "no"}
}

// Catalogue is a list of cards.
type Catalogue []Card

// Published returns the catalogue that the program carries.
func Published() (Catalogue, error) {
	var c Catalogue
	if err := json.Unmarshal([]byte(catalog.GPUs), &c); err != nil {
		return nil, fmt.Errorf("catalogue of GPUs: %w", err)
	}
	return c, nil
}

// userLimit bounds a user's own file of cards.
const userLimit = 1 << 20

// ParseYAML reads a user's own cards, in the form of catalog/gpus.
func ParseYAML(name string, data []byte) (Catalogue, error) {
	if len(data) > userLimit {
		return nil, fmt.Errorf("%s: %d bytes are too many for a list of GPUs", name, len(data))
	}
	var entries []map[string]any
	if err := yaml.UnmarshalWithOptions(data, &entries, yaml.Strict()); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	text, err := json.Marshal(entries)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	dec := json.NewDecoder(strings.NewReader(string(text)))
	dec.DisallowUnknownFields()
	var c Catalogue
	if err := dec.Decode(&c); err != nil {
		return nil, fmt.Errorf("%s: %s", name, strings.TrimPrefix(err.Error(), "json: "))
	}
	for i := range c {
		if err := c[i].check(); err != nil {
			return nil, fmt.Errorf("%s: entry %d: %w", name, i+1, err)
		}
	}
	return c, nil
}

// check finds an entry that cannot be used.
func (c *Card) check() error {
	switch {
	case c.Name == "":
		return fmt.Errorf("name is missing")
	case c.MemoryMiB <= 0 || c.MemoryMiB > 1<<24:
		return fmt.Errorf("%s: memory_mib: %d is not the memory of a card", c.Name, c.MemoryMiB)
	case c.TorchMiB < 0 || c.TorchMiB > c.MemoryMiB:
		return fmt.Errorf("%s: torch_mib: %d is more than memory_mib", c.Name, c.TorchMiB)
	case len(c.USDHour) != 0 && (len(c.USDHour) != 2 || c.USDHour[0] > c.USDHour[1]):
		return fmt.Errorf("%s: usd_hour: want the lowest and the highest price", c.Name)
	}
	if c.TorchMiB == 0 {
		c.TorchMiB = c.MemoryMiB
	}
	if c.PerNode == 0 {
		c.PerNode = 1
	}
	return nil
}

// With returns the catalogue with a user's cards, each in the place of the one
// of its name, new ones first.
func (c Catalogue) With(own Catalogue) Catalogue {
	replaced := map[string]Card{}
	for _, card := range own {
		replaced[plain(card.Name)] = card
	}
	var out, rest Catalogue
	for _, card := range c {
		if mine, ok := replaced[plain(card.Name)]; ok {
			card = mine
			delete(replaced, plain(card.Name))
		}
		rest = append(rest, card)
	}
	for _, card := range own {
		if _, new := replaced[plain(card.Name)]; new {
			out = append(out, card)
		}
	}
	return append(out, rest...)
}

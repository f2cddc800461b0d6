package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"unoom/internal/gpu"
	"unoom/internal/report/text"
	"unoom/internal/units"
)

func (a *app) gpusCommand() *cobra.Command {
	var slicesToo bool
	c := &cobra.Command{
		Use:   "gpus [NAME]...",
		Short: "List and compare GPUs of the catalogue",
		Long: "gpus lists the cards that unoom knows, with the memory that torch sees of them, their\n" +
			"rates and prices. With names it shows those cards, side by side.\n\n" +
			"Your own figures go into ~/.config/unoom/catalog/gpus/NAME.yaml.",
		Example: "  unoom gpus\n" +
			"  unoom gpus rtx-4090\n" +
			"  unoom gpus a100-80gb h100 h200",
		RunE: func(_ *cobra.Command, args []string) error { return a.gpus(args, slicesToo) },
	}
	c.Flags().BoolVar(&slicesToo, "mig", false, "list MIG slices too")
	return c
}

// configDir is where a user's own files are.
func (a *app) configDir() string {
	if dir := a.Getenv("XDG_CONFIG_HOME"); dir != "" {
		return filepath.Join(dir, "unoom")
	}
	if home := a.Getenv("HOME"); home != "" {
		return filepath.Join(home, ".config", "unoom")
	}
	return ""
}

// cards returns the catalogue of GPUs with the user's own on top.
func (a *app) cards() (gpu.Catalogue, error) {
	c, err := gpu.Published()
	if err != nil {
		return nil, err
	}
	dir := a.configDir()
	if dir == "" {
		return c, nil
	}
	files, err := filepath.Glob(filepath.Join(dir, "catalog", "gpus", "*.yaml"))
	if err != nil {
		return c, nil // a folder whose name is a broken pattern has no files for us
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		own, err := gpu.ParseYAML(name, data)
		if err != nil {
			return nil, withHint(err, "correct the file or move it away; catalog/gpus/README.md has the fields")
		}
		c = c.With(own)
	}
	return c, nil
}

// hintGPU adds the choices to an error about a card's name.
func hintGPU(err error) error {
	e, ok := errors.AsType[*gpu.NameError](err)
	if !ok {
		return err
	}
	if len(e.Choices) == 0 {
		return withHint(err, "`unoom gpus` lists the names; any other card: --capacity 24GiB")
	}
	return withHint(err, "say which: "+strings.Join(e.Choices, ", "))
}

func (a *app) gpus(names []string, slicesToo bool) error {
	all, err := a.cards()
	if err != nil {
		return err
	}
	var cards []gpu.Card
	if len(names) == 0 {
		for _, c := range all {
			if slicesToo || c.MIG == "" {
				cards = append(cards, c)
			}
		}
	}
	for _, name := range names {
		r, err := all.Find(name)
		if err != nil {
			return hintGPU(err)
		}
		cards = append(cards, r.Card)
	}
	if a.json {
		return a.printJSON("unoom/gpus/v1", nil, gpusJSON(cards))
	}
	p := a.printer()
	switch {
	case len(names) == 0:
		a.listGPUs(p, cards)
	default:
		a.compareGPUs(p, cards)
	}
	return p.Err()
}

// listGPUs prints one line for each card.
func (a *app) listGPUs(p *text.Printer, cards []gpu.Card) {
	t := &text.Table{Align: []text.Align{text.Left, text.Right, text.Right, text.Right, text.Right, text.Left}}
	head := []string{a.msgs.Text("gpus.col_name"), a.msgs.Text("gpus.col_total"), a.msgs.Text("gpus.col_bandwidth"), "bf16 TFLOPS", "$/h", a.msgs.Text("gpus.col_link")}
	for i, h := range head {
		head[i] = text.Style(text.Faint, h)
	}
	t.Row(head...)
	for i := range cards {
		c := &cards[i]
		t.Row(c.Name, fmt.Sprintf("%.2f", c.Total().GiB()), figure(c.BandwidthGBs), figure(c.TFLOPS.BF16), price(c, ""), c.Link)
	}
	p.Table(t)
	p.Blank()
	p.Para(0, a.msgs.Text("gpus.note", len(cards)))
}

// compareGPUs prints one column for each card.
func (a *app) compareGPUs(p *text.Printer, cards []gpu.Card) {
	// As many columns as the width holds; further cards follow below.
	const label, column = 24, 18
	per := max(1, (p.Width()-label)/column)
	if len(cards) == 1 {
		per = 1
	}
	first := true
	for chunk := range slices.Chunk(cards, per) {
		if !first {
			p.Blank()
		}
		first = false
		t := &text.Table{Align: []text.Align{text.Left}}
		for range chunk {
			t.Align = append(t.Align, text.Right)
		}
		if len(chunk) == 1 {
			t.Align = nil
		}
		row := func(id string, f func(c *gpu.Card) string) {
			cells, any := []string{a.msgs.Text(id)}, false
			for i := range chunk {
				v := f(&chunk[i])
				any = any || v != ""
				if v == "" {
					v = a.msgs.Text("not_available")
				}
				cells = append(cells, v)
			}
			if any {
				t.Row(cells...)
			}
		}
		row("gpus.card", func(c *gpu.Card) string { return c.Name })
		row("gpus.arch", func(c *gpu.Card) string {
			if c.SM == "" {
				return c.Arch
			}
			return c.Arch + ", sm " + c.SM
		})
		row("gpus.driver_total", func(c *gpu.Card) string { return c.Memory().String() })
		row("gpus.torch_total", func(c *gpu.Card) string { return c.Total().String() })
		row("gpus.context", func(c *gpu.Card) string { return unlessZero(c.ContextMiB, c.Context().String()) })
		row("gpus.usable", func(c *gpu.Card) string { return text.Style(text.Strong, c.Usable().String()) })
		row("gpus.bandwidth", func(c *gpu.Card) string { return withUnit(c.BandwidthGBs, "GB/s") })
		rates := []struct {
			id string
			of func(*gpu.Rates) float64
		}{
			{"gpus.fp8", func(r *gpu.Rates) float64 { return r.FP8 }}, {"gpus.bf16", func(r *gpu.Rates) float64 { return r.BF16 }},
			{"gpus.fp16", func(r *gpu.Rates) float64 { return r.FP16 }}, {"gpus.tf32", func(r *gpu.Rates) float64 { return r.TF32 }},
			{"gpus.fp32", func(r *gpu.Rates) float64 { return r.FP32 }},
		}
		for _, r := range rates {
			row(r.id, func(c *gpu.Card) string { return withUnit(r.of(&c.TFLOPS), "TFLOPS") })
		}
		row("gpus.link", func(c *gpu.Card) string {
			if c.LinkGBs == 0 {
				return c.Link
			}
			return c.Link + " " + withUnit(c.LinkGBs, "GB/s")
		})
		row("gpus.pcie", func(c *gpu.Card) string { return withUnit(c.PCIeGBs, "GB/s") })
		row("gpus.per_node", func(c *gpu.Card) string { return strconv.Itoa(c.PerNode) })
		row("gpus.price", func(c *gpu.Card) string { return price(c, "$") })
		row("gpus.verified", func(c *gpu.Card) string {
			switch c.Verified {
			case "no", "":
				return a.msgs.Text("gpus.not_verified")
			case "public logs":
				return a.msgs.Text("gpus.verified_logs")
			}
			return c.Verified
		})
		if len(chunk) == 1 {
			row("gpus.note_of_card", func(c *gpu.Card) string { return c.Note })
			row("gpus.aliases", func(c *gpu.Card) string { return strings.Join(c.Aliases, ", ") })
		}
		p.Table(t)
	}
}

// figure writes a rate without needless decimals, n/a where there is none.
func figure(v float64) string {
	if v == 0 {
		return "–"
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

func withUnit(v float64, unit string) string {
	if v == 0 {
		return ""
	}
	return figure(v) + " " + unit
}

func unlessZero(n int64, s string) string {
	if n == 0 {
		return ""
	}
	return s
}

// price writes the span of prices of an hour.
func price(c *gpu.Card, currency string) string {
	if len(c.USDHour) != 2 {
		if currency == "" {
			return "–"
		}
		return ""
	}
	return fmt.Sprintf("%s%s–%s", currency, figure(c.USDHour[0]), figure(c.USDHour[1]))
}

// gpuJSON is a card as `unoom gpus --json` writes it.
type gpuJSON struct {
	Name          string             `json:"name"`
	Aliases       []string           `json:"aliases"`
	Vendor        string             `json:"vendor"`
	Arch          string             `json:"arch"`
	ComputeCap    *string            `json:"compute_capability"`
	MIGOf         *string            `json:"mig_of"`
	MemoryBytes   units.Bytes        `json:"memory_bytes"`
	TotalBytes    units.Bytes        `json:"total_bytes"`
	ContextBytes  *units.Bytes       `json:"context_bytes"`
	UsableBytes   units.Bytes        `json:"usable_bytes"`
	BandwidthGBs  *float64           `json:"bandwidth_gb_per_s"`
	SMs           *int               `json:"multiprocessors"`
	TFLOPS        map[string]float64 `json:"tflops"`
	Link          string             `json:"link"`
	LinkGBs       *float64           `json:"link_gb_per_s"`
	PCIeGBs       *float64           `json:"pcie_gb_per_s"`
	PerNode       int                `json:"per_node"`
	USDHourLow    *float64           `json:"usd_per_hour_low"`
	USDHourHigh   *float64           `json:"usd_per_hour_high"`
	VerifiedWhere *string            `json:"verified"`
	Note          *string            `json:"note"`
}

// known is a pointer to v, nil for a zero value: unknown is null, not zero.
func known[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func gpusJSON(cards []gpu.Card) any {
	out := []gpuJSON{}
	for i := range cards {
		c := &cards[i]
		j := gpuJSON{
			Name: c.Name, Aliases: c.Aliases, Vendor: c.Vendor, Arch: c.Arch, ComputeCap: known(c.SM), MIGOf: known(c.MIG),
			MemoryBytes: c.Memory(), TotalBytes: c.Total(), ContextBytes: known(c.Context()), UsableBytes: c.Usable(),
			BandwidthGBs: known(c.BandwidthGBs), SMs: known(c.SMs), TFLOPS: map[string]float64{}, Link: c.Link, LinkGBs: known(c.LinkGBs),
			PCIeGBs: known(c.PCIeGBs), PerNode: c.PerNode, Note: known(c.Note),
		}
		if j.Aliases == nil {
			j.Aliases = []string{}
		}
		for name, v := range map[string]float64{"bf16": c.TFLOPS.BF16, "fp16": c.TFLOPS.FP16, "fp8": c.TFLOPS.FP8, "tf32": c.TFLOPS.TF32, "fp32": c.TFLOPS.FP32} {
			if v > 0 {
				j.TFLOPS[name] = v
			}
		}
		if len(c.USDHour) == 2 {
			j.USDHourLow, j.USDHourHigh = &c.USDHour[0], &c.USDHour[1]
		}
		if c.Verified != "no" {
			j.VerifiedWhere = known(c.Verified)
		}
		out = append(out, j)
	}
	return struct {
		GPUs []gpuJSON `json:"gpus"`
	}{out}
}

package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"unoom/internal/model"
	"unoom/internal/report/text"
	"unoom/internal/units"
)

func (a *app) modelsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "models [NAME|PATH]...",
		Short: "List models, or show what one is made of",
		Long: "models lists the models that unoom knows by name. With a name, or the path of a\n" +
			"config.json, of a model's folder or of a safetensors file, it shows its parameters by\n" +
			"part, its sizes and what its weights take. A beginning of a name lists its family.",
		Example: "  unoom models\n" +
			"  unoom models llama-3.1-8b\n" +
			"  unoom models ./checkpoint",
		RunE: func(_ *cobra.Command, args []string) error { return a.models(args) },
	}
}

// shownModel is one model with what is said of it.
type shownModel struct {
	*model.Source
	entry *model.Entry // nil: not the catalogue's
}

func (a *app) models(names []string) error {
	all, err := model.Published()
	if err != nil {
		return err
	}
	var shown []shownModel
	list := len(names) == 0
	add := func(e *model.Entry) error {
		m, err := e.Model(model.Options{})
		if err != nil {
			return err
		}
		shown = append(shown, shownModel{&model.Source{Model: m}, e})
		return nil
	}
	if list {
		for i := range all {
			if err := add(&all[i]); err != nil {
				return err
			}
		}
	}
	for _, name := range names {
		s, err := openModel(name)
		if several, ok := errors.AsType[*model.UnknownModelError](err); ok && len(several.Several) > 0 {
			list = true // the beginning of several names: its family
			for i := range all {
				for _, n := range several.Several {
					if all[i].Name == n {
						if err := add(&all[i]); err != nil {
							return err
						}
					}
				}
			}
			continue
		}
		if err != nil {
			return err
		}
		one := shownModel{Source: s}
		if e, err := all.Find(s.Name); err == nil && e.Name == s.Name {
			one.entry = e
		}
		shown = append(shown, one)
	}
	if a.json {
		return a.modelsJSON(shown)
	}
	p := a.printer()
	if list {
		families := []model.Family{model.Decoder, model.Encoder, model.EncoderDecoder, model.Vision, model.Diffusion}
		slices.SortStableFunc(shown, func(x, y shownModel) int {
			return slices.Index(families, x.Family) - slices.Index(families, y.Family)
		})
		a.listModels(p, shown)
		return p.Err()
	}
	for i := range shown {
		if i > 0 {
			p.Blank()
		}
		a.showModel(p, &shown[i])
	}
	return p.Err()
}

// paramCount writes a number of parameters to three digits: 8.03B, 335M.
func paramCount(n int64) string {
	f := float64(n)
	for _, u := range []struct {
		size float64
		unit string
	}{{1e9, "B"}, {1e6, "M"}, {1e3, "K"}} {
		if f >= 0.9995*u.size { // 999,885,952 is 1.00B, not 1000M
			v := f / u.size
			switch {
			case v >= 99.95:
				return fmt.Sprintf("%.0f%s", v, u.unit)
			case v >= 9.995:
				return fmt.Sprintf("%.1f%s", v, u.unit)
			}
			return fmt.Sprintf("%.2f%s", v, u.unit)
		}
	}
	return fmt.Sprint(n)
}

// dimsOf returns a model's sizes by name.
func dimsOf(m *model.Model) map[string]int64 {
	d := map[string]int64{}
	for _, dim := range m.Describe() {
		d[dim.Name] = dim.Value
	}
	return d
}

// listModels prints one line for each model.
func (a *app) listModels(p *text.Printer, shown []shownModel) {
	t := &text.Table{Align: []text.Align{text.Left, text.Right, text.Right, text.Right, text.Right, text.Right, text.Left}}
	var head []string
	for _, id := range []string{"models.col_name", "models.col_params", "models.col_layers", "models.col_hidden", "models.col_heads", "models.col_vocab", "models.col_type"} {
		head = append(head, text.Style(text.Faint, a.msgs.Text(id)))
	}
	t.Row(head...)
	size := func(n int64) string {
		if n == 0 {
			return "–"
		}
		return fmt.Sprint(n)
	}
	for i := range shown {
		m := shown[i].Model
		d := dimsOf(m)
		heads := size(d["heads"])
		if k := d["kv_heads"]; k > 0 && k != d["heads"] {
			heads += "/" + size(k)
		}
		t.Row(m.Name, paramCount(m.Params()), size(d["layers"]), size(d["hidden"]), heads, size(d["vocab"]), m.Type)
	}
	p.Table(t)
	p.Blank()
	p.Para(0, a.msgs.Text("models.note", len(shown)))
}

// showModel prints what a model is made of.
func (a *app) showModel(p *text.Printer, s *shownModel) {
	m := s.Model
	params := m.Params()
	title := a.msgs.Text("models.title", m.Name, text.Style(text.Strong, paramCount(params)), thousands(int(params)))
	if active := m.ActiveParams(); active != params {
		title += a.msgs.Text("models.active", paramCount(active))
	}
	p.Para(0, title)
	p.Blank()

	t := &text.Table{Indent: 2}
	t.Row(a.msgs.Text("models.architecture"), a.architecture(m))
	for _, d := range m.Describe() {
		if id := "models.dim_" + d.Name; a.msgs.Has(id) {
			t.Row(a.msgs.Text(id), thousands(int(d.Value)))
		}
	}
	if m.TiedHead {
		t.Row(a.msgs.Text("models.tied"), a.msgs.Text("models.yes"))
	}
	if m.Quantized != "" {
		t.Row(a.msgs.Text("models.quantized"), m.Quantized)
	}
	if m.DType != "" {
		t.Row(a.msgs.Text("models.dtype"), string(m.DType))
	}
	p.Table(t)

	p.Heading(a.msgs.Text("models.parts"))
	parts := &text.Table{Indent: 2, Align: []text.Align{text.Left, text.Right, text.Right, text.Left}}
	for _, part := range m.Parts() {
		share := float64(part.Params) / float64(max(params, 1))
		parts.Row(a.msgs.Text("models.part_"+part.Name), thousands(int(part.Params)), fmt.Sprintf("%.1f %%", 100*share), text.Bar(share, 20))
	}
	p.Table(parts)

	p.Heading(a.msgs.Text("models.weights"))
	weights := &text.Table{Indent: 2, Align: []text.Align{text.Left, text.Right}}
	for _, w := range weightsOf(m) {
		weights.Row(w.what, w.bytes.String())
	}
	p.Table(weights)
	if s.entry != nil {
		from := s.entry.ParamsFrom
		if from == "" {
			from = "class"
		}
		p.Blank()
		p.Para(0, a.msgs.Text("models.source", a.msgs.Text("models.from_"+from)))
	}
	for _, w := range s.Warnings {
		p.Blank()
		p.Hanging(text.Style(text.Caution, a.msgs.Text("warning")+": "), w)
	}
}

// architecture describes the blocks in a few words.
func (a *app) architecture(m *model.Model) string {
	words := []string{m.Type, a.msgs.Text("models.family_" + string(m.Family))}
	if m.Family == "" {
		return m.Type
	}
	if s := m.Main(); s != nil {
		for _, l := range s.Layers {
			if at := l.Attention; at != nil {
				switch {
				case at.MLA != nil:
					words = append(words, "MLA")
				case at.KVHeads == 1 && at.Heads > 1:
					words = append(words, "MQA")
				case at.KVHeads < at.Heads:
					words = append(words, "GQA")
				default:
					words = append(words, "MHA")
				}
				if at.QKNorm != model.NoQKNorm {
					words = append(words, "QK norm")
				}
				if at.Window > 0 {
					words = append(words, a.msgs.Text("models.window", at.Window))
				}
				break
			}
		}
		for _, l := range s.Layers {
			act, gated := model.Act(""), false
			switch {
			case l.MLP != nil:
				act, gated = l.MLP.Act, l.MLP.Gated
			case l.MoE != nil:
				act, gated = l.MoE.Act, l.MoE.Gated
			default:
				continue
			}
			if gated {
				words = append(words, a.msgs.Text("models.gated", string(act)))
			} else {
				words = append(words, string(act))
			}
			break
		}
	}
	if m.Position != model.NoPosition {
		words = append(words, a.msgs.Text("models.position_"+string(m.Position)))
	}
	return strings.Join(words, ", ")
}

// weightSize is what the weights take in one form.
type weightSize struct {
	what  string
	key   string
	bytes units.Bytes
}

// weightsOf returns what the weights take, and what training adds to them in the
// two usual precisions.
func weightsOf(m *model.Model) []weightSize {
	n := units.Bytes(m.Params())
	return []weightSize{
		{"float32", "float32_bytes", 4 * n},
		{"bfloat16 / float16", "bfloat16_bytes", 2 * n},
		{"int8 / float8", "int8_bytes", n},
	}
}

// modelJSON is a model as `unoom models --json` writes it.
type modelJSON struct {
	Name         string           `json:"name"`
	Aliases      []string         `json:"aliases"`
	Type         string           `json:"model_type"`
	Family       *string          `json:"family"`
	Params       int64            `json:"params"`
	ActiveParams int64            `json:"active_params"`
	DType        *string          `json:"dtype"`
	Quantized    *string          `json:"quantized"`
	TiedHead     bool             `json:"tied_head"`
	Dims         map[string]int64 `json:"dims"`
	Parts        []model.Part     `json:"parts"`
	Weights      map[string]int64 `json:"weights"`
}

func (a *app) modelsJSON(shown []shownModel) error {
	out := []modelJSON{}
	var warnings []warning
	for i := range shown {
		s := &shown[i]
		m := s.Model
		j := modelJSON{
			Name: m.Name, Aliases: []string{}, Type: m.Type, Family: known(string(m.Family)), Params: m.Params(), ActiveParams: m.ActiveParams(),
			DType: known(string(m.DType)), Quantized: known(m.Quantized), TiedHead: m.TiedHead, Dims: dimsOf(m), Parts: m.Parts(), Weights: map[string]int64{},
		}
		if s.entry != nil && len(s.entry.Aliases) > 0 {
			j.Aliases = s.entry.Aliases
		}
		for _, w := range weightsOf(m) {
			j.Weights[w.key] = int64(w.bytes)
		}
		for _, w := range s.Warnings {
			warnings = append(warnings, warning{Code: "model.mismatch", Msg: w, Where: m.Name})
		}
		out = append(out, j)
	}
	return a.printJSON("unoom/models/v1", warnings, struct {
		Models []modelJSON `json:"models"`
	}{out})
}

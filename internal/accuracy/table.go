package accuracy

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"unoom/internal/gpu"
	"unoom/internal/memory"
	"unoom/internal/model"
	"unoom/internal/units"
	"unoom/internal/workload"
)

// needed are the columns without which a table cannot be read.
var needed = []string{"id", "source", "model", "framework", "micro_batch", "measured_metric", "measured_gib", "outcome"}

// rowsMost bounds a table.
const rowsMost = 1 << 20

// ReadTable reads a CSV table of measured runs; the columns are described in
// docs/accuracy.md.
func ReadTable(r io.Reader) ([]workload.Row, error) {
	c := csv.NewReader(r)
	c.ReuseRecord = true
	head, err := c.Read()
	if err != nil {
		return nil, fmt.Errorf("read the header of the table: %w", err)
	}
	names := append([]string(nil), head...)
	have := map[string]bool{}
	for _, n := range names {
		have[n] = true
	}
	for _, n := range needed {
		if !have[n] {
			return nil, fmt.Errorf("the table has no column %q", n)
		}
	}
	var rows []workload.Row
	for {
		rec, err := c.Read()
		if errors.Is(err, io.EOF) {
			return rows, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read the table: %w", err)
		}
		if len(rows) == rowsMost {
			return nil, fmt.Errorf("the table has more than %d rows", rowsMost)
		}
		row := make(workload.Row, len(names))
		for i, n := range names {
			row[n] = rec[i]
		}
		rows = append(rows, row)
	}
}

// A Predictor predicts rows of a table.
type Predictor struct {
	Engine *memory.Engine
	Models model.Catalogue
	Cards  gpu.Catalogue
}

// Predict returns the row's case and the estimate, nil where the row cannot be
// predicted.
func (p *Predictor) Predict(r workload.Row) (*Case, *memory.Estimate) {
	c := &Case{ID: r["id"], Source: r["source"], Model: r["model"], Metric: MetricOf(r["measured_metric"]), Outcome: r["outcome"]}
	mark, marked := r["strict"]
	c.Strict = mark == "1" || !marked // a table without marks is meant as it is
	c.Vision = strings.HasPrefix(r["arch_family"], "vision")
	c.Measured, _ = strconv.ParseFloat(r["measured_gib"], 64)
	confidence, _ := strconv.Atoi(r["confidence"])
	notes := strings.ToLower(r["notes"])
	c.Firm = !strings.Contains(notes, "inferred") && !strings.Contains(notes, "fragmentation")
	c.Judged = confidence >= 3 && r["gpu_capacity_gib"] != ""
	w, err := workload.FromRow(r, p.find)
	if err != nil {
		c.WhyNot = err.Error()
		return c, nil
	}
	c.Vision = c.Vision || w.Model.Image != nil
	p.card(w)
	est, err := p.Engine.Estimate(w)
	if err != nil {
		c.WhyNot = err.Error()
		return c, nil
	}
	e := est.Allocated
	switch c.Metric {
	case Reserved:
		e = est.Reserved
	case Device:
		e = est.Device
	case Held:
		if !w.ForwardOnly {
			c.WhyNot = "what is held after the forward pass of a training step"
			return c, nil
		}
		scatter := float64(est.Allocated.High) / float64(max(est.Allocated.Mid, 1))
		e = units.Estimate{Low: units.Bytes(float64(est.Held) / scatter), Mid: est.Held, High: units.Bytes(float64(est.Held) * scatter)}
	}
	c.Predicted, c.Low, c.High = e.Mid.GiB(), e.Low.GiB(), e.High.GiB()
	c.Verdict = Verdict(est.Verdict)
	return c, est
}

// card fills in what the table's name of the card says. Where it could be one of
// several, they agree on all but a few hundred MiB, and the first is taken.
func (p *Predictor) card(w *workload.Workload) {
	req, err := p.Cards.Find(w.GPU.Name)
	if name, ok := errors.AsType[*gpu.NameError](err); ok && len(name.Choices) > 0 {
		req, err = p.Cards.Find(name.Choices[0])
	}
	if err != nil {
		return
	}
	g := workload.FromCard(&req.Card)
	if w.GPU.Capacity > 0 {
		g.Capacity = w.GPU.Capacity
	}
	if w.GPU.Context > 0 {
		g.Context, g.ContextMeasured = w.GPU.Context, w.GPU.ContextMeasured
	}
	w.GPU = g
}

// find returns the model of a row: from the arguments of its launch, from the
// catalogue, or from its dimensions where they make the parameters that the row
// states.
func (p *Predictor) find(w *workload.Workload, r workload.Row) (*model.Model, error) {
	if w.Framework == workload.Megatron {
		return model.FromMegatron(r["model"], megatronVocab(w, r), w.Option)
	}
	if w.Framework == workload.MegatronDeepSpeed {
		return megatronOf(w, r)
	}
	if m, err := p.Models.Named(r["model"], model.Options{Head: headOf(w)}); err == nil {
		return m, nil
	}
	d := model.Dims{Layers: r.Number("layers"), Hidden: r.Number("hidden"), Heads: r.Number("heads"), KVHeads: r.Number("kv_heads"), FFN: r.Number("ffn"), Vocab: r.Number("vocab")}
	params := r.Number("params")
	if d.Layers > 0 && params > 0 {
		if m, form := model.FromCount(r["model"], d, params); m != nil {
			w.Assume("model", form.String(), "the form in which the stated dimensions make the stated parameters")
			return m, nil
		}
	}
	return nil, &workload.Unanswerable{Why: "the model is not in the catalogue, and its dimensions do not make its parameters in a known form"}
}

// megatronOf builds the network of a Megatron run from its dimensions; whether it
// has a table of positions follows from the parameters it is said to have.
func megatronOf(w *workload.Workload, r workload.Row) (*model.Model, error) {
	flags := map[string]string{"num-layers": r["layers"], "hidden-size": r["hidden"], "num-attention-heads": r["heads"], "ffn-hidden-size": r["ffn"],
		"max-position-embeddings": r["seq_len_or_image"], "tensor-model-parallel-size": strconv.FormatInt(w.Parallel.Tensor, 10)}
	var first *model.Model
	for _, positions := range []string{"none", "learned_absolute"} {
		flags["position-embedding-type"] = positions
		m, err := model.FromMegatron(r["model"], megatronVocab(w, r), func(name string) (string, bool) { v, ok := flags[name]; return v, ok })
		if err != nil {
			return nil, err
		}
		if n := r.Number("params"); n == 0 || n == m.Params() {
			return m, nil
		}
		first = cmp.Or(first, m)
	}
	w.Assume("model", strconv.FormatInt(first.Params(), 10)+" parameters", "what its dimensions make")
	return first, nil
}

// headOf is the head that a row states, "": what the model's configuration says.
func headOf(w *workload.Workload) model.HeadKind {
	head := strings.ToLower(w.Options["head"])
	switch {
	case strings.Contains(head, "classif"):
		return model.HeadClassify
	case strings.Contains(head, "mlm"), strings.Contains(head, "masked"):
		return model.HeadMaskedLM
	}
	return ""
}

// megatronVocab is the size of the tokenizer's vocabulary, which no argument
// states.
func megatronVocab(w *workload.Workload, r workload.Row) int64 {
	if n := r.Number("vocab"); n > 0 {
		return n
	}
	var n int64
	switch {
	case strings.HasPrefix(r["arch_family"], "encoder"):
		n = 28996 // bert-large-cased, the vocabulary of Megatron's BERT and T5 examples
	case w.Has("moe-layer-freq") || w.Has("num-experts"):
		n = 128256
	default:
		n = 50257 // GPT-2's
	}
	w.Assume("vocab", strconv.FormatInt(n, 10), "no launch argument states the size of the vocabulary")
	return n
}

package speed

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
)

// A Row is one published throughput figure with the setting it was measured in.
type Row struct {
	Source, URL, Model, GPU string
	Line                    int
	Net                     *Net
	Device                  *Device
	Setting                 Setting
	Measured                float64 // tokens each second for each accelerator
}

// Predicted returns the throughput that the constants give for the row, with
// the interval, in tokens each second for each accelerator.
func (r *Row) Predicted(c *Constants) (low, mid, high float64) {
	s := c.Estimate(r.Net, r.Device, &r.Setting)
	per := float64(s.TokensStep) * 1e6 / float64(r.Setting.World())
	return per / s.High, per / s.Mid, per / s.Low
}

// ReadTable reads a table of published throughput with the networks and the
// accelerators it names, all in CSV. A row that names an unknown one, or has a
// broken figure, is an error that says its line.
func ReadTable(throughput, models, gpus io.Reader) ([]Row, error) {
	nets := map[string]*Net{}
	if err := records("models", models, func(_ int, f *fields) {
		nets[f.text("name")] = decoderNet(f)
	}); err != nil {
		return nil, err
	}
	devices, err := readDevices(gpus)
	if err != nil {
		return nil, err
	}
	var rows []Row
	err = records("throughput", throughput, func(line int, f *fields) {
		r := Row{Source: f.text("source"), URL: f.text("url"), Model: f.text("model"), GPU: f.text("gpu"), Line: line, Measured: f.num("tokens_per_second_per_gpu")}
		r.Net = nets[r.Model]
		d := devices[r.GPU]
		if r.Net == nil || d == nil {
			f.fail(fmt.Errorf("no model %q or no accelerator %q", r.Model, r.GPU))
			return
		}
		own := *d
		own.PerNode = int(f.num("per_node"))
		r.Device = &own
		r.Setting = rowSetting(f, r.Net)
		if r.Measured <= 0 || r.Setting.Seq < 1 || r.Setting.World() < 1 || r.Setting.Seq > 1<<30 {
			f.fail(errors.New("the setting or its throughput is not positive"))
		}
		rows = append(rows, r)
	})
	return rows, err
}

func readDevices(gpus io.Reader) (map[string]*Device, error) {
	devices := map[string]*Device{}
	err := records("gpus", gpus, func(_ int, f *fields) {
		devices[f.text("name")] = &Device{
			Arch: Arch(f.text("arch")), BF16: f.num("bf16"), FP16: f.num("fp16"), FP8: f.num("fp8"), TF32: f.num("tf32"), FP32: f.num("fp32"),
			Bandwidth: f.num("bandwidth"), SMs: int(f.num("sms")), Link: f.num("link"), PCIe: f.num("pcie"), NIC: f.num("nic"), Power: f.num("power"),
		}
	})
	return devices, err
}

// ReadImages reads a table of published throughput of image networks, in samples
// each second, and the accelerators it names. The caller knows the networks.
func ReadImages(table, gpus io.Reader, net func(model string, size int) (*Net, error)) ([]Row, error) {
	devices, err := readDevices(gpus)
	if err != nil {
		return nil, err
	}
	var rows []Row
	err = records("images", table, func(line int, f *fields) {
		r := Row{Source: f.text("source"), URL: f.text("url"), Model: f.text("model"), GPU: f.text("gpu"), Line: line, Measured: f.num("samples_per_second_per_gpu")}
		r.Device = devices[r.GPU]
		n, err := net(r.Model, int(f.int("image")))
		if err == nil && r.Device == nil {
			err = fmt.Errorf("no accelerator %q", r.GPU)
		}
		if err != nil {
			f.fail(err)
			return
		}
		r.Net = n
		r.Setting = Setting{
			MicroBatch: int(f.int("micro")), Data: int(f.int("gpus")), Compute: Compute(f.text("dtype")), Kernels: Eager, Sharding: DDP,
			StepBytes: 20, ChannelsLast: f.text("layout") == "nhwc", // SGD with momentum
		}
		if r.Measured <= 0 {
			f.fail(errors.New("the throughput is not positive"))
		}
		rows = append(rows, r)
	})
	return rows, err
}

// decoderNet is the work of a decoder from its dimensions.
func decoderNet(f *fields) *Net {
	h, a, kv, hd := f.int("hidden"), f.int("heads"), f.int("kv_heads"), f.int("head_dim")
	ffn, experts, k, ef := f.int("ffn"), f.int("experts"), f.int("topk"), f.int("expert_ffn")
	gated := f.int("gated") == 1
	b := Block{Count: int(f.int("layers")), Query: a * hd, Key: kv * hd, Value: a * hd, Causal: true, Norms: h, KernelScale: 1}
	b.GEMMs = []GEMM{{In: h, Out: (a + 2*kv) * hd}, {In: a * hd, Out: h, Rows: true}}
	up := int64(1)
	if gated {
		up = 2
	}
	if ffn > 0 {
		b.GEMMs = append(b.GEMMs, GEMM{In: h, Out: up * ffn}, GEMM{In: ffn, Out: h, Rows: true})
		b.Inner = inner(ffn, gated)
	}
	if experts > 0 {
		b.GEMMs = append(b.GEMMs, GEMM{In: h, Out: up * ef, Experts: experts, TopK: k}, GEMM{In: ef, Out: h, Experts: experts, TopK: k, Rows: true})
		b.Inner, b.Routed = inner(ef*k, gated), true
		b.Experts = experts * (up + 1) * h * ef
		b.KernelScale = 1.5
	}
	n := &Net{Blocks: []Block{b}, Hidden: h, Vocab: f.int("vocab"), Params: f.int("params"), Layers: b.Count}
	return n
}

func rowSetting(f *fields, net *Net) Setting {
	s := Setting{
		MicroBatch: int(f.int("micro")), Accumulation: int(f.int("accum")), Seq: int(f.int("seq")),
		Compute: Compute(f.text("dtype")), Kernels: Kernels(f.text("kernels")), Sharding: Sharding(f.text("sharding")),
		Tensor: int(f.int("tp")), Pipeline: int(f.int("pp")), Chunks: int(f.int("vp")), Context: int(f.int("cp")), Expert: int(f.int("ep")),
		WeightBytes: 2, GradBytes: 4, StepBytes: 28,
	}
	s.Data = int(f.int("gpus")) / max(1, s.Tensor*s.Pipeline*s.Context)
	switch f.text("state") {
	case "pure":
		s.GradBytes, s.StepBytes = 2, 14
	case "amp":
		s.StepBytes = 28
	case "megatron":
		s.StepBytes = 26
	}
	switch f.text("optimizer") {
	case "adamw": // the foreach form reads and writes its temporaries
		s.StepBytes *= 1.7
	case "adamw8bit":
		s.StepBytes = 12
	}
	switch f.text("checkpointing") {
	case "full":
		s.Full = 1
	case "selective":
		s.Selective = 1
	}
	if s.Kernels == Megatron && s.Selective > 0 { // core attention only, which fused attention does anyway
		s.Selective = 0
	}
	switch m := f.text("method"); m {
	case "lora", "qlora":
		s.Frozen, s.Adapter, s.Targets = true, int(f.int("rank")), 1
		if f.text("targets") == "attention" {
			s.Targets = 0.35 // by width, in a decoder block
		}
		s.Trainable = net.Params / 200
		if m == "qlora" {
			s.Quantised, s.WeightBytes = true, 0.55
		}
	}
	if s.Compute == FP8 && s.Kernels == Compiled {
		s.WeightBytes = 1 // float8 all-gather
	}
	s.OffloadWeights = f.text("offload") == "params"
	return s
}

// fields is one record of a CSV file, read by the names of its columns.
type fields struct {
	at     map[string]int
	values []string
	err    error
}

func (f *fields) fail(err error) {
	if f.err == nil {
		f.err = err
	}
}

func (f *fields) text(name string) string {
	i, ok := f.at[name]
	if !ok {
		f.fail(fmt.Errorf("no column %q", name))
		return ""
	}
	return f.values[i]
}

// num returns a number; an empty cell is 0.
func (f *fields) num(name string) float64 {
	t := f.text(name)
	if t == "" {
		return 0
	}
	v, err := strconv.ParseFloat(t, 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		f.fail(fmt.Errorf("%s: %q is not a number", name, t))
	}
	return v
}

// int returns a whole number of a size that settings have.
func (f *fields) int(name string) int64 {
	v := f.num(name)
	if v < 0 || v > 1<<50 {
		f.fail(fmt.Errorf("%s: %v is out of range", name, v))
		return 0
	}
	return int64(v)
}

// records calls each with every record after the header.
func records(name string, r io.Reader, each func(line int, f *fields)) error {
	in := csv.NewReader(r)
	header, err := in.Read()
	if err != nil {
		return fmt.Errorf("%s: header: %w", name, err)
	}
	at := map[string]int{}
	for i, h := range header {
		at[h] = i
	}
	for {
		values, err := in.Read()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		line, _ := in.FieldPos(0)
		f := &fields{at: at, values: values}
		each(line, f)
		if f.err != nil {
			return fmt.Errorf("%s: line %d: %w", name, line, f.err)
		}
	}
}

// A SourceScore says how near the predictions come to one source.
type SourceScore struct {
	Source   string
	Rows     int
	Spearman float64 // of the throughput over all rows
	// Kendall is the rank correlation among settings of the same model on the
	// same accelerator with the same method, which is what a search compares;
	// pairs whose measured figures differ by less than 10 % are left out.
	Kendall float64
	Pairs   int
	Median  float64 // of |predicted/measured - 1|
	Bias    float64 // median of predicted/measured - 1
	Inside  float64 // share of measured figures inside the interval
}

// Score compares the predictions with a table, by source and, as the last
// element with the name "all", over the whole.
func Score(rows []Row, c *Constants) []SourceScore {
	var names []string
	for i := range rows {
		if !slices.Contains(names, rows[i].Source) {
			names = append(names, rows[i].Source)
		}
	}
	var out []SourceScore
	for _, name := range append(names, "all") {
		s := SourceScore{Source: name}
		var predicted, measured, errs, signed []float64
		var group []string
		inside := 0
		for i := range rows {
			r := &rows[i]
			if name != "all" && r.Source != name {
				continue
			}
			low, mid, high := r.Predicted(c)
			predicted, measured = append(predicted, mid), append(measured, r.Measured)
			group = append(group, fmt.Sprint(r.Source, r.Model, r.GPU, r.Setting.Frozen, r.Setting.Compute))
			errs = append(errs, math.Abs(mid/r.Measured-1))
			signed = append(signed, mid/r.Measured-1)
			if low <= r.Measured && r.Measured <= high {
				inside++
			}
		}
		s.Rows = len(predicted)
		s.Spearman = Spearman(predicted, measured)
		s.Kendall, s.Pairs = kendall(predicted, measured, group)
		s.Median, s.Bias = median(errs), median(signed)
		s.Inside = float64(inside) / float64(max(s.Rows, 1))
		out = append(out, s)
	}
	return out
}

// kendall is the rank correlation over the pairs within a group.
func kendall(x, y []float64, group []string) (tau float64, pairs int) {
	sum := 0
	for i := range x {
		for j := range i {
			if group[i] != group[j] || math.Abs(math.Log(y[i]/y[j])) < 0.1 {
				continue
			}
			pairs++
			if (x[i] > x[j]) == (y[i] > y[j]) && x[i] != x[j] {
				sum++
			} else if x[i] != x[j] {
				sum--
			}
		}
	}
	if pairs == 0 {
		return math.NaN(), 0
	}
	return float64(sum) / float64(pairs), pairs
}

// Spearman returns the rank correlation of two series of the same length.
func Spearman(x, y []float64) float64 {
	a, b := ranks(x), ranks(y)
	var sa, sb float64
	for i := range a {
		sa += a[i]
		sb += b[i]
	}
	n := float64(len(a))
	var ab, aa, bb float64
	for i := range a {
		da, db := a[i]-sa/n, b[i]-sb/n
		ab, aa, bb = ab+da*db, aa+da*da, bb+db*db
	}
	return ab / math.Sqrt(aa*bb)
}

// ranks returns the rank of each value, ties sharing the mean of theirs.
func ranks(x []float64) []float64 {
	order := make([]int, len(x))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		switch {
		case x[a] < x[b]:
			return -1
		case x[a] > x[b]:
			return 1
		}
		return 0
	})
	r := make([]float64, len(x))
	for i := 0; i < len(order); {
		j := i
		for j < len(order) && x[order[j]] == x[order[i]] {
			j++
		}
		for k := i; k < j; k++ {
			r[order[k]] = float64(i+j-1)/2 + 1
		}
		i = j
	}
	return r
}

func median(x []float64) float64 {
	if len(x) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(x))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

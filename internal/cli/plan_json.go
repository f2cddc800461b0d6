package cli

import (
	"math"

	"unoom/internal/plan"
	"unoom/internal/units"
	"unoom/internal/workload"
)

// The JSON of unoom/plan/v1. Within the version only additions.
type (
	planJSON struct {
		Batch    int           `json:"global_batch"`
		Capacity units.Bytes   `json:"capacity_bytes"`
		Budget   units.Bytes   `json:"budget_bytes"`
		Present  presentJSON   `json:"present"`
		Plans    []onePlanJSON `json:"plans"`
		Needs    []needJSON    `json:"needs"`
		Why      *whyJSON      `json:"why,omitempty"`
	}
	presentJSON struct {
		Fits     bool         `json:"fits"`
		Broken   string       `json:"broken_rule,omitempty"`
		Estimate estimateJSON `json:"estimate"`
		Short    units.Bytes  `json:"short_bytes"`
		TimeUS   int64        `json:"step_time_us"`
	}
	estimateJSON struct {
		Device rangeJSON   `json:"device_bytes"`
		Phase  string      `json:"phase"`
		Source string      `json:"source"` // "engine" or "closed_form"
		Host   units.Bytes `json:"host_bytes"`
	}
	rangeJSON struct {
		Low  units.Bytes `json:"low"`
		Mid  units.Bytes `json:"mid"`
		High units.Bytes `json:"high"`
	}
	onePlanJSON struct {
		Workload  *workload.Workload `json:"workload"`
		Estimate  estimateJSON       `json:"estimate"`
		TimeUS    int64              `json:"step_time_us"`
		TimeLow   int64              `json:"step_time_low_us"`
		TimeHigh  int64              `json:"step_time_high_us"`
		TokensPS  int64              `json:"tokens_per_second"`
		Headroom  float64            `json:"headroom_ratio"`
		Exact     bool               `json:"exact"`
		Targets   []plan.Target      `json:"targets"`
		Steps     []stepJSON         `json:"steps"`
		Parts     map[string]int64   `json:"time_parts_us"`
		WorldSize int                `json:"gpus"`
	}
	stepJSON struct {
		Code     string      `json:"code"`
		Also     []string    `json:"also,omitempty"`
		From     string      `json:"from"`
		To       string      `json:"to"`
		Saves    units.Bytes `json:"saves_bytes"`
		Peak     units.Bytes `json:"peak_bytes"`
		Slowdown float64     `json:"slowdown_ratio"`
		Exact    bool        `json:"exact"`
		Host     units.Bytes `json:"host_bytes"`
	}
	needJSON struct {
		Kind      plan.NeedKind `json:"kind"`
		GPUs      int           `json:"gpus"`
		GPU       string        `json:"gpu"`
		Method    string        `json:"method"`
		Optimizer string        `json:"optimizer"`
		Precision string        `json:"precision"`
		Seq       int           `json:"seq"`
		Target    string        `json:"target,omitempty"`
		Peak      units.Bytes   `json:"peak_bytes"`
		TimeUS    int64         `json:"step_time_us"`
	}
	whyJSON struct {
		Fixed        units.Bytes `json:"fixed_bytes"`
		Sample       units.Bytes `json:"per_sample_bytes"`
		Token        units.Bytes `json:"per_token_bytes"`
		MicroUS      int64       `json:"sample_time_us"`
		Micro        int         `json:"micro_batch"`
		Other        int         `json:"other_micro_batch"`
		OtherUS      int64       `json:"sample_time_at_other_us"`
		Accumulation int         `json:"accumulation"`
		BatchNorm    bool        `json:"batch_norm"`
		Saves        units.Bytes `json:"recompute_saves_bytes"`
		Slowdown     float64     `json:"recompute_slowdown_ratio"`
		Rate         *rateJSON   `json:"learning_rate,omitempty"`
	}
	rateJSON struct {
		Old    int     `json:"old_batch"`
		New    int     `json:"new_batch"`
		Linear float64 `json:"linear_ratio"`
		Sqrt   float64 `json:"sqrt_ratio"`
		Rule   string  `json:"rule"` // "linear" or "sqrt"
	}
	offersJSON struct {
		Considered int        `json:"considered"`
		Fitting    int        `json:"fitting"`
		Smallest   *offerJSON `json:"smallest"`
		Cheapest   *offerJSON `json:"cheapest"`
		Fastest    *offerJSON `json:"fastest"`
		Nearest    *offerJSON `json:"nearest,omitempty"` // where none is within the limits
	}
	offerJSON struct {
		GPU        string      `json:"gpu"`
		GPUs       int         `json:"gpus"`
		Machine    string      `json:"machine,omitempty"`
		Machines   int         `json:"machines,omitempty"`
		USDPerHour *float64    `json:"usd_per_hour"`
		USDPerStep *float64    `json:"usd_per_step"`
		PriceFrom  string      `json:"price_source,omitempty"`
		PriceDate  string      `json:"price_date,omitempty"`
		Plan       onePlanJSON `json:"plan"`
	}
)

func micros(v float64) int64 { return int64(math.Round(v)) }

func judgementJSON(j *plan.Judgement) estimateJSON {
	source := "closed_form"
	if j.Engine != nil {
		source = "engine"
	}
	return estimateJSON{rangeJSON{j.Device.Low, j.Device.Mid, j.Device.High}, string(j.Phase), source, j.Host}
}

func planOf(p *plan.Plan, capacity units.Bytes) onePlanJSON {
	o := onePlanJSON{
		Workload: p.Workload, Estimate: judgementJSON(&p.Need), TimeUS: micros(p.Time.Mid), TimeLow: micros(p.Time.Low), TimeHigh: micros(p.Time.High),
		TokensPS: micros(p.Time.TokensPerSecond()), Headroom: math.Round(1e4*p.Headroom(capacity)) / 1e4, Exact: p.Exact, Targets: p.Targets, Steps: []stepJSON{}, WorldSize: p.Choice.GPUs,
		Parts: map[string]int64{
			"compute": micros(p.Time.Compute), "recompute": micros(p.Time.Recompute), "launch": micros(p.Time.Launch), "data_parallel": micros(p.Time.Data), "tensor_parallel": micros(p.Time.Tensor),
			"context_parallel": micros(p.Time.Context), "expert_parallel": micros(p.Time.Expert), "pipeline_bubble": micros(p.Time.Bubble), "offload": micros(p.Time.Offload), "optimizer": micros(p.Time.Optimizer),
		},
	}
	if o.Targets == nil {
		o.Targets = []plan.Target{}
	}
	for _, s := range p.Steps {
		js := stepJSON{Code: string(s.Code), From: s.From, To: s.To, Saves: s.Saves, Peak: s.Peak, Slowdown: math.Round(1e4*s.Slowdown) / 1e4, Exact: s.Exact, Host: s.Host}
		for _, a := range s.Also {
			js.Also = append(js.Also, string(a))
		}
		o.Steps = append(o.Steps, js)
	}
	return o
}

func (c *planCommand) jsonOf(r *plan.Result) planJSON {
	out := planJSON{
		Batch: r.Batch, Capacity: r.Capacity, Budget: r.Budget, Plans: []onePlanJSON{}, Needs: []needJSON{},
		Present: presentJSON{Fits: r.Present.Fits, Broken: r.Present.Broken, Estimate: judgementJSON(&r.Present.Need), Short: r.Present.Short, TimeUS: micros(r.Present.Time.Mid)},
	}
	for i := range r.Plans {
		out.Plans = append(out.Plans, planOf(&r.Plans[i], r.Capacity))
	}
	for _, n := range r.Needs {
		out.Needs = append(out.Needs, needJSON{
			Kind: n.Kind, GPUs: n.GPUs, GPU: n.GPU, Method: string(n.Choice.Method), Optimizer: string(n.Choice.Optimizer), Precision: string(n.Choice.Precision),
			Seq: n.Choice.Seq, Target: string(n.Target), Peak: n.Peak, TimeUS: micros(n.Time),
		})
	}
	if c.why {
		w := r.Explain()
		out.Why = &whyJSON{
			Fixed: w.Fixed, Sample: w.Sample, Token: w.Token, MicroUS: micros(w.MicroTime), Micro: w.Micro, Other: w.Other, OtherUS: micros(w.OtherTime), Accumulation: w.Accumulation,
			BatchNorm: w.BatchNorm, Saves: w.RecomputeSaves, Slowdown: math.Round(1e4*w.RecomputeSlowdown) / 1e4,
		}
		if q := w.Rate; q != nil {
			rule := "linear"
			if q.Adaptive {
				rule = "sqrt"
			}
			out.Why.Rate = &rateJSON{q.OldBatch, q.NewBatch, q.Linear, q.Sqrt, rule}
		}
	}
	return out
}

func offerOf(o *plan.Offer) *offerJSON {
	if o == nil {
		return nil
	}
	j := &offerJSON{GPU: o.Hardware.Name, GPUs: o.Hardware.Count, Plan: planOf(&o.Plan, o.Hardware.Capacity)}
	if n := o.Hardware.PerMachine; n > 0 {
		j.Machine, j.Machines = o.Hardware.Machine, o.Hardware.Count/n
	}
	if o.USDPerHour > 0 {
		hour, step := math.Round(1e2*o.USDPerHour)/1e2, o.USDPerStep
		j.USDPerHour, j.USDPerStep = &hour, &step
		j.PriceFrom, j.PriceDate = o.Hardware.Price.Source, o.Hardware.Price.Date
	}
	return j
}

package cli

import (
	"unoom/internal/memory"
	"unoom/internal/units"
	"unoom/internal/workload"
)

// The JSON of unoom/estimate/v1. Within the version only additions.
type (
	estimateDataJSON struct {
		Workload  *workload.Workload `json:"workload"`
		Source    string             `json:"source"` // "engine" or "closed_form"
		Missing   string             `json:"not_modelled,omitempty"`
		Allocated *rangeJSON         `json:"peak_allocated_bytes"`
		Reserved  *rangeJSON         `json:"peak_reserved_bytes"`
		Device    rangeJSON          `json:"device_bytes"`
		Phase     string             `json:"phase"`
		Phases    []phaseJSON        `json:"phases"`
		Stages    []stageJSON        `json:"pipeline_stages,omitempty"`
		Items     []itemJSON         `json:"items"`
		Unplayed  []string           `json:"not_counted,omitempty"`
		Outside   []outsideJSON      `json:"outside"`
		Choices   []choiceJSON       `json:"choices"`
		Verdict   *string            `json:"verdict"`
		Capacity  *units.Bytes       `json:"capacity_bytes"`
		PerSample *units.Bytes       `json:"per_sample_bytes"`
		PerToken  *units.Bytes       `json:"per_token_bytes"`
		Largest   *int64             `json:"largest_micro_batch"`
		Machine   *machineJSON       `json:"this_machine,omitempty"`
	}
	// machineJSON is what the runs in the ledger of this machine say.
	machineJSON struct {
		Host      string      `json:"host"`
		Runs      int         `json:"runs"`
		Ratio     float64     `json:"measured_over_predicted_ratio"`
		Allocated units.Bytes `json:"peak_allocated_bytes"`
	}
	phaseJSON struct {
		Phase     string      `json:"phase"`
		Allocated units.Bytes `json:"peak_allocated_bytes"`
		// Items are what the peak of a phase beside the training steps is made of.
		Items []itemJSON `json:"items,omitempty"`
	}
	// stageJSON is a pipeline rank; the fullest, of which all figures are, is
	// the first of the list.
	stageJSON struct {
		Rank      int64       `json:"rank"`
		Allocated units.Bytes `json:"peak_allocated_bytes"`
	}
	itemJSON struct {
		Kind  string      `json:"kind"`
		Name  string      `json:"name"`
		Bytes units.Bytes `json:"bytes"`
	}
	outsideJSON struct {
		Name   string    `json:"name"`
		Bytes  rangeJSON `json:"bytes"`
		Source string    `json:"source"`
	}
	choiceJSON struct {
		Setting string     `json:"setting"`
		Value   string     `json:"value"`
		Variant string     `json:"variant"`
		Source  string     `json:"source"`
		Others  []elseJSON `json:"others"`
	}
	elseJSON struct {
		Value string      `json:"value"`
		Moves units.Bytes `json:"moves_allocated_bytes"`
	}
)

func rangeOf(e units.Estimate) rangeJSON { return rangeJSON{e.Low, e.Mid, e.High} }

func itemsOf(shares []memory.Share) []itemJSON {
	var out []itemJSON
	for _, s := range shares {
		out = append(out, itemJSON{string(s.Kind), s.Name, units.Bytes(s.Bytes)})
	}
	return out
}

func (e *estimateCommand) jsonOf(r *estimated) estimateDataJSON {
	out := estimateDataJSON{
		Workload: r.workload, Source: "closed_form", Missing: r.missing, Device: rangeOf(r.device), Phase: string(r.phase),
		Phases: []phaseJSON{}, Items: []itemJSON{}, Outside: []outsideJSON{}, Choices: []choiceJSON{},
	}
	if c := r.workload.GPU.Capacity; c > 0 {
		out.Capacity, out.Verdict = &c, &r.verdict
	}
	if r.engine == nil {
		return out
	}
	out.Source = "engine"
	if m := r.machine; m != nil {
		out.Machine = &machineJSON{m.Host, m.Runs, m.Ratio, r.here()}
	}
	allocated, reserved := rangeOf(r.engine.Allocated), rangeOf(r.engine.Reserved)
	out.Allocated, out.Reserved = &allocated, &reserved
	for _, p := range r.engine.Phases {
		out.Phases = append(out.Phases, phaseJSON{string(p.Phase), p.Allocated, itemsOf(p.Items)})
	}
	for _, s := range r.engine.Stages {
		out.Stages = append(out.Stages, stageJSON{s.Rank, s.Allocated})
	}
	out.Items = append(out.Items, itemsOf(r.engine.Items)...)
	out.Unplayed = r.engine.Unplayed
	for _, o := range r.engine.Outside {
		out.Outside = append(out.Outside, outsideJSON{o.Name, rangeOf(o.Bytes), o.Source})
	}
	for _, c := range r.engine.Choices {
		j := choiceJSON{c.Setting, c.Value, c.Variant, c.Source, []elseJSON{}}
		for _, o := range c.Others {
			j.Others = append(j.Others, elseJSON(o))
		}
		out.Choices = append(out.Choices, j)
	}
	if r.perSample > 0 {
		out.PerSample = &r.perSample
	}
	if r.perToken > 0 {
		out.PerToken = &r.perToken
	}
	if r.largest >= 0 {
		out.Largest = &r.largest
	}
	return out
}

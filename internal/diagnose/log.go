package diagnose

import (
	"cmp"
	"math"
	"slices"

	"unoom/internal/oomlog"
	"unoom/internal/remedy"
	"unoom/internal/units"
)

// otherPoints is the weight of "something that no rule speaks for".
const otherPoints = 1.0

// Log diagnoses what a scan found. Merge the scans of several ranks first.
func Log(res *oomlog.Result, given Given) Diagnosis {
	s := gather(res, given)
	d := Diagnosis{Verdict: s.verdict, Resource: "none", Phase: s.phase, Warnings: warnings(res)}
	if s.fail != nil {
		d.Failure = s.fail
		d.Where = s.fail.Where
		d.Resource = cmp.Or(resources[s.fail.Class], "none")
		d.Account = logAccount(&s.fail.Figures)
		d.Tried = s.fail.Figures.Tried.Bytes
		d.Later = s.later
	} else if res.Trace != nil {
		d.Where = res.Trace.Where
	}
	if s.hasSlack {
		slack := s.slack
		d.Slack = &slack
	}
	if s.verdict == NothingFound {
		d.OtherError = res.LastError
		d.Situation = situation(&d, s)
		return d
	}
	d.Causes = rank(s)
	if d.Verdict == OutOfMemory && len(d.Causes) > 0 && notOOM(d.Causes[0].Label) {
		d.Verdict = NotOutOfMemory
	}
	d.Notes = notes(s)
	d.Next = next(s, d.Causes)
	d.Situation = situation(&d, s)
	return d
}

// resources names what a class of message is about.
var resources = map[oomlog.Class]string{
	oomlog.ClassVRAM: "vram", oomlog.ClassVRAMMasked: "vram", oomlog.ClassVRAMProbable: "vram", oomlog.ClassHandled: "vram", oomlog.ClassSize: "vram",
	oomlog.ClassLimit: "limit", oomlog.ClassEngine: "kv_cache", oomlog.ClassPinned: "pinned", oomlog.ClassHost: "host", oomlog.ClassHostKilled: "host",
	oomlog.ClassSharedMemory: "shared_memory", oomlog.ClassDisk: "disk", oomlog.ClassOnChip: "on_chip",
}

func notOOM(label remedy.Cause) bool {
	return len(label) > 8 && label[:8] == "not_oom_"
}

// rank applies the rules and orders the causes.
func rank(s *signals) []Cause {
	points := map[remedy.Cause]float64{}
	causes := map[remedy.Cause]*Cause{}
	for _, r := range logRules() {
		hit, ok := r.when(s)
		if !ok {
			continue
		}
		sentence := Sentence{ID: "diagnose." + r.id, Args: hit.args, At: hit.at}
		for _, v := range r.votes {
			points[v.label] += v.points
			c := causes[v.label]
			if c == nil {
				c = &Cause{Label: v.label}
				causes[v.label] = c
			}
			if v.points > 0 {
				c.Evidence = append(c.Evidence, sentence)
			} else {
				c.Against = append(c.Against, sentence)
			}
		}
	}
	sum := math.Exp(otherPoints)
	for label, c := range causes {
		if len(c.Evidence) > 0 {
			sum += math.Exp(points[label])
		}
	}
	var list []Cause
	for label, c := range causes {
		if len(c.Evidence) == 0 {
			continue
		}
		c.Confidence = min(math.Exp(points[label])/sum, 0.99) // a message can be wrong, too
		if c.Confidence >= 0.01 {
			list = append(list, *c)
		}
	}
	slices.SortFunc(list, func(a, b Cause) int {
		return cmp.Or(cmp.Compare(b.Confidence, a.Confidence), cmp.Compare(a.Label, b.Label))
	})
	if len(list) > maxCauses {
		list = list[:maxCauses]
	}
	return list
}

// maxCauses bounds the list: a sixth possibility helps nobody.
const maxCauses = 6

// situation is what the remedies need to know.
func situation(d *Diagnosis, s *signals) remedy.Situation {
	sit := remedy.Situation{
		Account: d.Account, Tried: d.Tried, Slack: d.Slack, Phase: remedyPhase(s.phase), Framework: s.framework, GPU: s.gpu,
		MicroBatch: s.batch, Accumulation: s.accumulation, Sequence: s.sequence, WorldSize: s.world,
		DType: s.dtype, Optimizer: s.optimizer, Model: s.model, Checkpointing: s.checkpointing, ExpandableSegments: s.expandable,
	}
	s.complete(&sit)
	for _, c := range d.Causes {
		sit.Causes = append(sit.Causes, remedy.Weighted{Cause: c.Label, Confidence: c.Confidence})
	}
	return sit
}

// remedyPhase maps the phases of a log to those that a remedy knows.
func remedyPhase(p oomlog.Phase) remedy.Phase {
	switch p {
	case oomlog.PhaseData, oomlog.PhaseCommunication, oomlog.PhaseEngine:
		return remedy.PhaseUnknown
	}
	return remedy.Phase(p)
}

func warnings(res *oomlog.Result) []Sentence {
	var list []Sentence
	for _, w := range res.Warnings {
		list = append(list, Sentence{ID: "diagnose.warn." + w.Code, Args: []any{w.Source.String(), w.Detail}, At: w.Source})
	}
	return list
}

// share returns part/whole, 0 where the whole is not known.
func share(part, whole units.Bytes) float64 {
	if whole <= 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

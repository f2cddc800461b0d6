package remedy

import (
	"regexp"
	"strconv"
	"strings"

	"unoom/internal/account"
	"unoom/internal/units"
)

// facts is a Situation with the derived quantities that several remedies ask
// for. Every method tells "not known" apart from zero.
type facts struct{ Situation }

// weight returns the confidence that is on one of the causes.
func (f *facts) weight(causes ...Cause) float64 {
	sum := 0.0
	for _, w := range f.Causes {
		for _, c := range causes {
			if w.Cause == c {
				sum += w.Confidence
			}
		}
	}
	return sum
}

// of returns the bytes of a kind of the account, 0 without an account.
func (f *facts) of(kinds ...account.Kind) units.Bytes {
	if f.Account == nil {
		return 0
	}
	var sum units.Bytes
	for _, k := range kinds {
		sum += f.Account.Of(k)
	}
	return sum
}

// share returns bytes as a part of the capacity, 0 if that is not known.
func (f *facts) share(b units.Bytes) float64 {
	if f.Account == nil || f.Account.Capacity <= 0 {
		return 0
	}
	return float64(b) / float64(f.Account.Capacity)
}

// allocated returns what the job's tensors take, and false if the message has
// no such figure.
func (f *facts) allocated() (units.Bytes, bool) {
	b := f.of(account.Allocated, account.Weights, account.Gradients, account.OptimizerState,
		account.Activations, account.Temporaries, account.PrivatePools)
	return b, b > 0
}

// held returns what other processes hold for certain.
func (f *facts) held() units.Bytes { return f.of(account.OtherProcesses) }

// elsewhere reports whether most of the card is not held by this job's tensors
// and cache, so that no change of the job itself is the answer.
func (f *facts) elsewhere() bool {
	return f.share(f.of(account.OtherProcesses, account.OutsideOrOther)) > 0.5
}

// beyondCard reports whether the request alone exceeds the whole card.
func (f *facts) beyondCard() bool {
	return f.Account != nil && f.Account.Capacity > 0 && f.Tried > f.Account.Capacity
}

// shortfall returns how many bytes must become free for the failed request: at
// least low, if every unused piece could be joined; high, if none of the cached
// pieces can be used. It is false where the message has no figures.
func (f *facts) shortfall() (low, high units.Bytes, ok bool) {
	if f.Account == nil || f.Tried <= 0 || f.Account.Capacity <= 0 {
		return 0, 0, false
	}
	high = max(0, f.Tried-f.of(account.Free))
	low = max(0, high-f.of(account.Cached))
	if f.Slack != nil {
		low = max(0, -*f.Slack)
	}
	return low, max(low, high), true
}

// enough compares a saving with the shortfall of this one request. In the
// middle of a forward pass more requests are still to come, so that a saving
// which covers this one proves nothing.
func (f *facts) enough(saves *units.Estimate) *bool {
	low, high, ok := f.shortfall()
	if saves == nil || !ok {
		return nil
	}
	yes, no := true, false
	switch {
	case saves.High < low:
		return &no
	case saves.Low >= high && saves.Low > 0 && f.lastOfItsPhase():
		return &yes
	}
	return nil
}

// lastOfItsPhase reports whether the failed request stands near the peak of its
// step, so that little more is asked for after it.
func (f *facts) lastOfItsPhase() bool {
	switch f.Phase {
	case PhaseLoss, PhaseBackward, PhaseStep, PhaseSave:
		return true
	}
	return false
}

// Bytes for each parameter. Source: the accounting of mixed-precision training
// in ZeRO, arXiv:1910.02054 §3.1, and torch.optim.adamw: two states of the
// parameter's own type.
const (
	leastWeightBytes = 2.0    // 16-bit weights
	nf4WeightBytes   = 0.5159 // QLoRA §3, NF4 with double quantisation, arXiv:2305.14314
	fullStateBytes   = 16.0   // fp32 weights, gradients and two Adam states
	pureBF16Bytes    = 8.0    // all four in bf16
)

// sized finds the number of parameters in a model's name: "7B", "1.5b", "350M".
var sized = regexp.MustCompile(`(?i)(?:^|[-_/ ])(\d{1,4}(?:\.\d{1,3})?)([bm])(?:$|[-_/. ])`)

// params returns the number of parameters, from the caller or else as the
// model's name tells it.
func (f *facts) params() (float64, bool) {
	if f.Params > 0 {
		return float64(f.Params), true
	}
	m := sized.FindStringSubmatch(f.Model)
	if m == nil {
		return 0, false
	}
	n, err := strconv.ParseFloat(m[1], 64)
	if err != nil || n <= 0 {
		return 0, false
	}
	if strings.EqualFold(m[2], "b") {
		return n * 1e9, true
	}
	return n * 1e6, true
}

// full reports whether all parameters are trained, as far as is known: a
// method that is not named is taken as full.
func (f *facts) full() bool { return f.Method == "" || f.Method == "full" }

// stateBytes returns weights, gradients and optimizer state on one card, as an
// interval over what the log leaves open, and false if the model is not known.
func (f *facts) stateBytes() (units.Estimate, bool) {
	if b := f.of(account.Weights, account.Gradients, account.OptimizerState); b > 0 {
		return units.Exactly(b), true
	}
	p, ok := f.params()
	if !ok {
		return units.Estimate{}, false
	}
	low, high := leastWeightBytes, fullStateBytes
	switch {
	case f.Method == "qlora":
		low, high = nf4WeightBytes, 1.5
	case f.Method == "lora": // the base may be in 8 bits without the text's saying so
		low, high = leastWeightBytes/2, 5
	case f.sharded() && f.WorldSize > 1:
		low, high = leastWeightBytes/float64(f.WorldSize), (fullStateBytes+2)/float64(f.WorldSize)+2
	}
	e := units.Estimate{
		Low: units.Bytes(low * p), High: units.Bytes(high * p),
		Mid: units.Bytes((low + high) / 2 * p),
	}
	if a, ok := f.allocated(); ok {
		e.High = min(e.High, a)
		e.Low = min(e.Low, e.High)
		e.Mid = min(max(e.Mid, e.Low), e.High)
	}
	return e, true
}

// sharded reports whether the parameters themselves are split over the ranks.
func (f *facts) sharded() bool { return f.Sharding == "fsdp" || f.Sharding == "zero3" }

// activations returns the bytes that grow with the batch at the moment of the
// failure. A message does not split what is allocated, so the answer is an
// interval: exact only where the account has the part, and narrower where the
// size of the model is known.
func (f *facts) activations() (units.Estimate, bool) {
	if b := f.of(account.Activations); b > 0 {
		return units.Exactly(b), true
	}
	if f.Activations.High > 0 {
		return f.Activations, true
	}
	a, ok := f.allocated()
	if !ok {
		return units.Estimate{}, false
	}
	s, known := f.stateBytes()
	if !known {
		return units.Estimate{Low: 0, Mid: a / 2, High: a}, true
	}
	return units.Estimate{Low: a - s.High, Mid: a - s.Mid, High: a - s.Low}, true
}

// training reports whether the failure is in a pass whose memory grows with
// the training batch: not while loading, saving, resuming or evaluating, nor in
// the optimizer step, when the activations are gone.
func (f *facts) training() bool {
	switch f.Phase {
	case PhaseUnknown, PhaseForward, PhaseLoss, PhaseBackward:
		return true
	}
	return false
}

// ownMemory reports whether a change to this job's training pass can help at
// all: the common condition of the capacity remedies.
func (f *facts) ownMemory() bool { return f.training() && !f.elsewhere() && f.Cap == 0 }

// portion returns the part of e between two shares.
func portion(e units.Estimate, low, high float64) *units.Estimate {
	mid := (low + high) / 2
	return &units.Estimate{
		Low:  units.Bytes(low * float64(e.Low)),
		Mid:  units.Bytes(mid * float64(e.Mid)),
		High: units.Bytes(high * float64(e.High)),
	}
}

// exactly returns a known saving, or nil for none.
func exactly(b units.Bytes) *units.Estimate {
	if b <= 0 {
		return nil
	}
	e := units.Exactly(b)
	return &e
}

// is reports whether a setting is known and has this value.
func is(setting *bool, value bool) bool { return setting != nil && *setting == value }

func yes() *bool { b := true; return &b }
func no() *bool  { b := false; return &b }

// because is a verdict that the remedy applies, with the reason.
func because(id string, args ...any) verdict {
	return verdict{applies: true, why: Reason{"remedy.why." + id, args}}
}

// freeing adds a saving to a verdict.
func (v verdict) freeing(e *units.Estimate) verdict { v.saves = e; return v }

// surely says whether the remedy is enough, where the bytes do not decide it.
func (v verdict) surely(enough *bool) verdict { v.enough = enough; return v }

// scaled changes the rank of the remedy in this situation.
func (v verdict) scaled(weight float64) verdict { v.weight = weight; return v }

// with adds values for the placeholders of the page; pairs of name and value.
// Values that are not known (zero or empty) are left out.
func (v verdict) with(pairs ...any) verdict {
	if v.fill == nil {
		v.fill = map[string]string{}
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		name := pairs[i].(string)
		switch x := pairs[i+1].(type) {
		case int:
			if x != 0 {
				v.fill[name] = strconv.Itoa(x)
			}
		case string:
			if x != "" {
				v.fill[name] = x
			}
		}
	}
	return v
}

// never is the verdict of a remedy that does not follow from the situation.
func never() verdict { return verdict{} }

// always is the judge of a remedy whose causes are reason enough.
func always(id string) func(*facts) verdict {
	return func(*facts) verdict { return because(id) }
}

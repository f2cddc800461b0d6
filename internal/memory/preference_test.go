package memory

import (
	"testing"

	"unoom/internal/workload"
)

func preferenceRun(t testing.TB, f workload.Framework, o workload.Objective, trl string) *workload.Workload {
	w := base(smallLlama(t))
	w.Framework, w.Objective, w.Versions = f, o, map[string]string{"trl": trl, "transformers": "4.50"}
	if f == workload.ColossalAI {
		w.Sharding, w.Parallel.World, w.Parallel.Data = workload.ZeRO2, 2, 2
	}
	return w
}

// Whatever the objective asks for, an iteration holds no more than the one before:
// ColossalChat's loop replaces the logits that it refers to.
func TestPreferencesLeaveNothing(t *testing.T) {
	for _, o := range []workload.Objective{workload.DPO, workload.KTO, workload.SimPO, workload.ORPO, workload.CPO, workload.Reward} {
		for _, f := range []workload.Framework{workload.HFTrainer, workload.ColossalAI} {
			for _, trl := range []string{"0.11", "0.20"} {
				for _, p := range []workload.Precision{workload.BF16, workload.AMPBF16} {
					w := preferenceRun(t, f, o, trl)
					w.Precision = p
					// What is held lies in other blocks each time, with other rests.
					if run := playedRun(t, w); run.ends[1]-run.ends[0] > 1<<20 {
						t.Errorf("%s in %s with trl %s, %s: an iteration began with %d bytes and ended with %d", o, f, trl, p, run.ends[0], run.ends[1])
					}
				}
			}
		}
	}
}

// What each objective needs more than another follows from what it runs. The
// logits of two pairs of 512 tokens over 1,000 words are counted in bytes for each
// of their elements.
func TestPreferencesByWhatTheyRun(t *testing.T) {
	const logits = 4 * 512 * 1000
	peak := func(f workload.Framework, o workload.Objective, trl string) int64 {
		return playedRun(t, preferenceRun(t, f, o, trl)).peak.allocated
	}
	if simpo, orpo := peak(workload.HFTrainer, workload.SimPO, "0.20"), peak(workload.HFTrainer, workload.ORPO, "0.20"); orpo < simpo+2*logits/2 {
		t.Errorf("ORPO needs %d bytes, SimPO %d: the entropy of the chosen answers is missing", orpo, simpo)
	}
	if rows, whole := peak(workload.HFTrainer, workload.SimPO, "0.20"), peak(workload.HFTrainer, workload.SimPO, "0.11"); rows > whole {
		t.Errorf("by row the log probabilities need %d bytes, in one %d", rows, whole)
	}
	if reward, simpo := peak(workload.HFTrainer, workload.Reward, "0.20"), peak(workload.HFTrainer, workload.SimPO, "0.20"); reward > simpo-2*logits {
		t.Errorf("a reward model needs %d bytes, one with logits %d", reward, simpo)
	}
	held := func(o workload.Objective) int64 {
		run := playedRun(t, preferenceRun(t, workload.ColossalAI, o, ""))
		return run.ends[1]
	}
	params := smallLlama(t).Params()
	// DPO holds the float32 logits of the reference and its weights in 16 bits.
	if d := held(workload.DPO) - held(workload.SimPO) - 4*logits - 2*params; max(d, -d) > 1<<20 {
		t.Errorf("the reference of ColossalChat's DPO holds %d bytes, want %d", d+4*logits+2*params, 4*logits+2*params)
	}
}

package supervise

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"unoom/internal/ledger"
	"unoom/internal/remedy"
	"unoom/internal/units"
)

const gib = units.GiB

// oom is an attempt with micro-batch 32 that ran out of memory on 24 GiB.
func oom(change func(*Past)) Past {
	p := Past{
		Micro: 32, Accumulation: 1,
		Verdict: Verdict{Outcome: DeviceOOM, Figures: Figures{
			Tried: gib, Capacity: 24 * gib, Free: gib / 2, Allocated: 22 * gib, Reserved: 23 * gib,
		}},
	}
	if change != nil {
		change(&p)
	}
	return p
}

// calibrated adds the trials of a process with 4 GiB that stay and perRow bytes
// for each row.
func calibrated(perRow units.Bytes, rows ...int) func(*Past) {
	return func(p *Past) {
		ev := &Event{BatchRows: 32, Persistent: 4 * gib}
		for _, r := range rows {
			peak := 4*gib + units.Bytes(r)*perRow
			ev.Trials = append(ev.Trials, Trial{Rows: r, OK: peak < 23*gib, Peak: peak, Reserved: peak + gib/4})
		}
		p.Verdict.Process = &Process{Calibration: ev}
	}
}

func TestDecide(t *testing.T) {
	all := Abilities{Batch: "hf_trainer", Checkpointing: "shim", Environment: true}
	lim := Limits{MaxRestarts: 8, MinMicro: 1}
	batchNorm := func(p *Past) {
		calibrated(gib, 1, 2, 16)(p)
		p.Verdict.Process.BatchNorm = true
		p.Verdict.Process.Calibration.Trials = append(p.Verdict.Process.Calibration.Trials,
			Trial{Rows: 32, OK: true, Peak: 9 * gib, Reserved: 9 * gib, Checkpointing: true})
	}
	for _, c := range []struct {
		name          string
		past          []Past
		can           Abilities
		lim           Limits
		action        string
		micro, accum  int
		checkpointing string
		why           string
	}{
		{"success", []Past{{Verdict: Verdict{Outcome: Done}}}, all, lim, ActionDone, 0, 0, "", ""},
		{"a bug is not retried", []Past{{Verdict: Verdict{Outcome: Failed}}}, all, lim, ActionStop, 0, 0, "", "run_why_bug"},
		{"a consequence of another rank's error is not retried", []Past{{Verdict: Verdict{Outcome: CascadeFailed}}}, all, lim, ActionStop, 0, 0, "", "run_why_bug"},
		{"shared memory is not the batch", []Past{{Verdict: Verdict{Outcome: SharedMemory}}}, all, lim, ActionStop, 0, 0, "", "run_why_shm"},
		{"the largest batch that was seen to fit", []Past{oom(calibrated(gib, 1, 2, 16))}, all, lim, ActionRetry, 16, 2, "", "run_why_batch"},
		{"predicted between trials", []Past{oom(calibrated(gib, 1, 2))}, all, lim, ActionRetry, 16, 2, "", "run_why_batch"},
		{"a steeper slope needs a smaller batch", []Past{oom(calibrated(2*gib, 1, 2))}, all, lim, ActionRetry, 8, 4, "", "run_why_batch"},
		{"no trials: less than half", []Past{oom(nil)}, all, lim, ActionRetry, 16, 2, "", "run_why_batch"},
		{"not below the floor if recomputing helps", []Past{oom(calibrated(gib, 1, 2, 16))}, all,
			Limits{MaxRestarts: 8, MinMicro: 32}, ActionRetry, 32, 1, "full", "run_why_checkpointing"},
		{"BatchNorm: recompute, at the same batch", []Past{oom(batchNorm)}, all, lim, ActionRetry, 32, 1, "full", "run_why_checkpointing"},
		{"BatchNorm, nothing to recompute", []Past{oom(batchNorm)}, Abilities{Batch: "hf_trainer"}, lim, ActionRetry, 16, 2, "", "run_why_batch_inexact"},
		{"BatchNorm, exact, nothing to recompute", []Past{oom(batchNorm)}, Abilities{Batch: "hf_trainer"},
			Limits{MaxRestarts: 8, MinMicro: 1, Exact: true}, ActionGiveUp, 0, 0, "", "run_why_batch_norm"},
		{"nothing can be changed", []Past{oom(nil)}, Abilities{}, lim, ActionGiveUp, 0, 0, "", "run_why_no_handle"},
		{"state alone is too large", []Past{oom(func(p *Past) {
			p.Verdict.Process = &Process{Calibration: &Event{BatchRows: 32, Persistent: 30 * gib}}
		})}, all, lim, ActionGiveUp, 0, 0, "", "run_why_state"},
		{"a micro-batch of one: recompute", []Past{oom(func(p *Past) { p.Micro, p.Accumulation = 1, 32 })}, all, lim, ActionRetry, 1, 32, "full", "run_why_checkpointing"},
		{"others hold the card", []Past{oom(func(p *Past) { p.Verdict.Outcome = OtherTenant })}, all, lim, ActionStop, 0, 0, "", "run_why_tenant"},
		{"others hold the card, wait", []Past{oom(func(p *Past) { p.Verdict.Outcome = OtherTenant })}, all,
			Limits{MaxRestarts: 8, Wait: true}, ActionWait, 0, 0, "", "run_why_wait_tenant"},
		{"the host ran out: workers, not the batch", []Past{oom(func(p *Past) { p.Verdict.Outcome = HostOOM })}, all, lim, ActionRetry, 0, 0, "", "run_why_host"},
		{"no more restarts", []Past{oom(nil)}, all, Limits{MaxRestarts: 0}, ActionStop, 0, 0, "", "run_why_restarts"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := Decide(c.past, c.can, c.lim)
			if n.Action != c.action || n.Why != c.why {
				t.Fatalf("%s, %s; want %s, %s", n.Action, n.Why, c.action, c.why)
			}
			if n.Action != ActionRetry || c.micro == 0 {
				return
			}
			s := n.Settings
			if s.MicroBatch != c.micro || s.Accumulation != c.accum || s.Checkpointing != c.checkpointing {
				t.Errorf("micro-batch %d x %d, checkpointing %q; want %d x %d, %q",
					s.MicroBatch, s.Accumulation, s.Checkpointing, c.micro, c.accum, c.checkpointing)
			}
		})
	}
}

// Others may hold the card for days: waiting for them is no restart, and no lack of
// progress.
func TestWaitingHasNoEnd(t *testing.T) {
	busy := func(p *Past) { p.Verdict.Outcome = OtherTenant }
	var past []Past
	for range 20 {
		past = append(past, oom(busy))
	}
	lim := Limits{MaxRestarts: 1, Wait: true}
	if n := Decide(past, Abilities{}, lim); n.Action != ActionWait {
		t.Errorf("%s, %s after 20 times", n.Action, n.Why)
	}
	can := Abilities{Batch: "hf_trainer"}
	past = append(past, oom(nil))
	if n := Decide(past, can, lim); n.Action != ActionRetry {
		t.Errorf("%s, %s: the card is free now, and this is the first failure", n.Action, n.Why)
	}
	past = append(past, oom(func(p *Past) { p.Micro, p.Accumulation = 16, 2 }))
	if n := Decide(past, can, lim); n.Why != "run_why_restarts" {
		t.Errorf("%s, %s after two failures, one restart permitted", n.Action, n.Why)
	}
}

// Where only divisors are permitted, what they leave unused is told.
func TestRoomLeftByDivisors(t *testing.T) {
	seen := oom(calibrated(gib, 1, 2, 16)) // 24 rows fit, 32 did not
	equal := Decide([]Past{seen}, Abilities{Batch: "lightning"}, Limits{MaxRestarts: 8, MinMicro: 1})
	if equal.Settings.MicroBatch != 16 || equal.Roomy <= 17 || equal.Roomy >= 32 {
		t.Errorf("micro-batch %d, room for %d", equal.Settings.MicroBatch, equal.Roomy)
	}
	free := Decide([]Past{seen}, Abilities{Batch: "hf_trainer", Uneven: true}, Limits{MaxRestarts: 8, MinMicro: 1})
	if free.Roomy != 0 {
		t.Errorf("micro-batch %d, room for %d: any size is permitted", free.Settings.MicroBatch, free.Roomy)
	}
	if guess := Decide([]Past{oom(nil)}, Abilities{Batch: "lightning"}, Limits{MaxRestarts: 8, MinMicro: 1}); guess.Roomy != 0 {
		t.Errorf("%d: nothing was measured", guess.Roomy)
	}
}

// The largest micro-batch that fits, and no more passes than it needs.
func TestUnequalMicroBatches(t *testing.T) {
	can := Abilities{Batch: "hf_trainer", Uneven: true}
	for _, c := range []struct {
		name                   string
		fits                   int // the largest that was seen to fit; one more did not
		asked, accum           int
		micro, pieces, samples int
	}{
		{"the last one smaller", 18, 32, 1, 18, 2, 32},
		{"equal where that is nearly as large", 16, 32, 1, 16, 2, 0},
		{"a prime number of rows", 11, 31, 1, 11, 3, 31},
		{"over the script's own accumulation", 18, 32, 2, 18, 4, 64},
	} {
		p := oom(calibrated(gib, 1, 2, c.fits))
		p.Micro, p.Accumulation = c.asked, c.accum
		cal := p.Verdict.Process.Calibration
		cal.BatchRows = c.asked
		cal.Trials = append(cal.Trials, Trial{Rows: c.fits + 1})
		s := Decide([]Past{p}, can, Limits{MaxRestarts: 8, MinMicro: 1}).Settings
		if s.MicroBatch != c.micro || s.Accumulation != c.pieces || s.Samples != c.samples {
			t.Errorf("%s: %d x %d of %d; want %d x %d of %d", c.name, s.MicroBatch, s.Accumulation, s.Samples, c.micro, c.pieces, c.samples)
		}
	}
}

// A size that was seen to fit with hardly anything left gets joined pieces along.
func TestATightFitIsEased(t *testing.T) {
	can := Abilities{Batch: "hf_trainer", Environment: true}
	for reserved, want := range map[units.Bytes]string{22 * gib: "", 23*gib + gib/4: "expandable_segments:True"} {
		p := oom(calibrated(gib, 1, 2, 16))
		trials := p.Verdict.Process.Calibration.Trials
		trials[len(trials)-1].Reserved = reserved // of 23.5 GiB that the job can have
		n := Decide([]Past{p}, can, Limits{MaxRestarts: 8, MinMicro: 1})
		if n.Settings.AllocConf != want || n.Settings.MicroBatch != 16 {
			t.Errorf("%v reserved: %q, micro-batch %d", reserved, n.Settings.AllocConf, n.Settings.MicroBatch)
		}
		can.Environment = false
		if n := Decide([]Past{p}, can, Limits{MaxRestarts: 8, MinMicro: 1}); n.Settings.AllocConf != "" {
			t.Error("set where nobody reads it")
		}
		can.Environment = true
	}
}

// A run speaks of remedies as explain, plan and the documents do.
func TestRemediesAreThoseOfTheCatalogue(t *testing.T) {
	for _, code := range []remedy.Code{remedyAccumulate, remedyCheckpointing, remedyExpandable, remedyFraction, remedyWorkers, remedyPinned} {
		r, ok := remedy.Find(code)
		if !ok {
			t.Errorf("%s: no such remedy", code)
		} else if !r.Exact && code != remedyExpandable {
			t.Errorf("%s changes the mathematics, and a run applies it by itself", code)
		}
	}
}

func TestFragmentationTriesTheAllocatorOnlyWhereItHelps(t *testing.T) {
	can := Abilities{Batch: "hf_trainer", Environment: true}
	lim := Limits{MaxRestarts: 8}
	fragmented := func(perRow units.Bytes) Past {
		return oom(func(p *Past) {
			calibrated(perRow, 1, 2)(p)
			p.Verdict.Outcome = Fragmented
		})
	}
	n := Decide([]Past{fragmented(gib / 2)}, can, lim) // all 32 rows need 20 GiB of 23.5
	if n.Settings.AllocConf == "" || n.Settings.MicroBatch != 0 {
		t.Errorf("enough in sum: %+v", n.Settings)
	}
	n = Decide([]Past{fragmented(gib)}, can, lim) // 36 GiB
	if n.Settings.AllocConf != "" || n.Settings.MicroBatch != 16 {
		t.Errorf("not enough in sum: %+v", n.Settings)
	}
}

// Whatever happens, the effective batch stays, no size that failed is tried
// again, and the search ends.
func TestTheEffectiveBatchIsKept(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		micro := rapid.IntRange(1, 512).Draw(t, "micro")
		accum := rapid.IntRange(1, 16).Draw(t, "accum")
		fits := rapid.IntRange(0, micro-1).Draw(t, "fits")
		withTrials := rapid.Bool().Draw(t, "trials")
		can := Abilities{Batch: "template", Environment: true, Uneven: rapid.Bool().Draw(t, "uneven")}
		if rapid.Bool().Draw(t, "recompute") {
			can.Checkpointing = "shim"
		}
		var past []Past
		m, a, samples := micro, accum, 0
		s := ledger.Settings{}
		for range 50 {
			p := oom(nil)
			p.Micro, p.Accumulation, p.Samples, p.Settings = m, a, samples, s
			if withTrials {
				ev := &Event{BatchRows: m, Persistent: gib}
				for _, r := range []int{1, 2} {
					ev.Trials = append(ev.Trials, Trial{Rows: r, OK: r <= fits, Peak: gib + units.Bytes(r)*22*gib/units.Bytes(fits+1)})
				}
				p.Verdict.Process = &Process{Calibration: ev}
			}
			past = append(past, p)
			n := Decide(past, can, Limits{MaxRestarts: 100, MinMicro: 1})
			if n.Action != ActionRetry {
				return
			}
			if got := n.Settings; got.MicroBatch != 0 {
				last := micro*accum - got.MicroBatch*(got.Accumulation-1)
				if got.Samples == 0 && last != got.MicroBatch ||
					got.Samples != 0 && (!can.Uneven || got.Samples != micro*accum || last < 1 || last >= got.MicroBatch) {
					t.Fatalf("%d x %d of %d is not %d x %d", got.MicroBatch, got.Accumulation, got.Samples, micro, accum)
				}
			}
			for _, q := range past {
				if n.Settings.MicroBatch >= q.Micro && n.Settings.Checkpointing == q.Settings.Checkpointing &&
					n.Settings.AllocConf == q.Settings.AllocConf {
					t.Fatalf("%d again, %d did not fit", n.Settings.MicroBatch, q.Micro)
				}
			}
			s = n.Settings
			if s.MicroBatch != 0 {
				m, a, samples = s.MicroBatch, s.Accumulation, s.Samples
			}
			if m <= fits {
				return
			}
		}
		t.Fatal("no end")
	})
}

func TestTemplates(t *testing.T) {
	argv := []string{"train", "-b", "{micro_batch}", "--accum={accum}", "{checkpointing?--recompute}", "{resume?--from %s}", "{other}", "x{attempt}"}
	tpl := ParseTemplate(argv)
	got := tpl.Fill(ledger.Settings{MicroBatch: 8, Accumulation: 4, Checkpointing: "full", Resume: "/c/1"}, 32, 2)
	want := []string{"train", "-b", "8", "--accum=4", "--recompute", "--from", "/c/1", "{other}", "x2"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	got = tpl.Fill(ledger.Settings{MicroBatch: 8, Accumulation: 4}, 32, 1)
	want = []string{"train", "-b", "8", "--accum=4", "{other}", "x1"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if _, err := tpl.Start(0, 0, 1); err == nil {
		t.Error("no --global-batch: no error")
	}
	if _, err := tpl.Start(33, 0, 2); err == nil {
		t.Error("33 samples on 2 processes: no error")
	}
	if _, err := ParseTemplate([]string{"t", "{micro_batch}"}).Start(32, 0, 1); err == nil {
		t.Error("no {accum}: no error")
	}
	s, err := tpl.Start(64, 16, 2)
	if err != nil || s.MicroBatch != 16 || s.Accumulation != 2 {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestWorldOf(t *testing.T) {
	for _, c := range []struct {
		argv []string
		want int
	}{
		{[]string{"python", "train.py", "--nproc-per-node", "8"}, 1},
		{[]string{"torchrun", "--nproc-per-node", "8", "train.py"}, 8},
		{[]string{"torchrun", "--nnodes=2", "--nproc_per_node=4", "train.py"}, 8},
		{[]string{"accelerate", "launch", "--num_processes", "4", "train.py"}, 4},
		{[]string{"deepspeed", "--num_gpus=2", "train.py"}, 2},
	} {
		if got := WorldOf(c.argv); got != c.want {
			t.Errorf("%q: %d, want %d", c.argv, got, c.want)
		}
	}
}

func TestAllocConfIsMergedNotClobbered(t *testing.T) {
	for _, c := range []struct{ have, want string }{
		{"", "expandable_segments:True"},
		{"max_split_size_mb:128", "max_split_size_mb:128,expandable_segments:True"},
		{"expandable_segments:False,max_split_size_mb:128", "max_split_size_mb:128,expandable_segments:True"},
		{"roundup_power2_divisions:[256:1,512:2],backend:native", "roundup_power2_divisions:[256:1,512:2],backend:native,expandable_segments:True"},
	} {
		if got := mergeAllocConf(c.have, "expandable_segments:True"); got != c.want {
			t.Errorf("%q: %q, want %q", c.have, got, c.want)
		}
	}
	e := environ{"A=1", "PYTORCH_ALLOC_CONF=max_split_size_mb:64"}.withAllocConf("expandable_segments:True")
	if got := e.get("PYTORCH_ALLOC_CONF"); got != "max_split_size_mb:64,expandable_segments:True" {
		t.Errorf("the variable in use was not taken: %q", got)
	}
	if e.get("PYTORCH_CUDA_ALLOC_CONF") != "" {
		t.Error("a second variable would win over the user's")
	}
}

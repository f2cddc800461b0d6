package diagnose

import (
	"slices"
	"strings"

	"unoom/internal/oomlog"
	"unoom/internal/remedy"
	"unoom/internal/units"
)

// signals are the quantities and observations that the rules look at.
type signals struct {
	res     *oomlog.Result
	verdict Verdict
	fail    *oomlog.Failure // nil for a traceback alone
	earlier []oomlog.Failure
	later   []oomlog.Failure
	class   oomlog.Class
	phase   oomlog.Phase
	frames  []oomlog.Frame
	code    []string
	trace   string // frames and code in one small-letter text, to look for words

	// Figures in bytes; has* says which are known.
	capacity, tried, free, allocated, reserved, cached, private, this units.Bytes
	hasCapacity, hasTried, hasFree, hasReserved, hasCached, hasThis   bool
	outside                                                           units.Bytes // capacity - reserved - free
	hasOutside                                                        bool
	others                                                            []oomlog.Process
	othersSum                                                         units.Bytes
	slack                                                             units.Bytes
	hasSlack                                                          bool
	spilled                                                           bool // more allocated or reserved than the card has
	precision                                                         units.Bytes

	// Setting.
	framework                            remedy.Framework
	software                             string // the framework fact as it is, jax and tensorflow included
	gpu, dtype, optimizer, model         string
	platform                             string // wsl, windows, jetson, gb10, apu
	batch, accumulation, sequence, world int
	evalBatch                            int
	checkpointing, expandable            *bool
	language                             bool // a language model, by its words
	diffusion                            bool
	distributed                          bool
	engineShare                          string
	progress                             *oomlog.Progress
	growth                               *growth
}

// gather collects the signals of the first cause.
func gather(res *oomlog.Result, given Given) *signals {
	s := &signals{res: res, verdict: NothingFound}
	s.choose()
	if said, ok := res.Facts.Get(oomlog.FactPhase); ok && s.phase == oomlog.PhaseUnknown {
		s.phase = oomlog.Phase(said.Value) // nothing but the words of who asks
	}
	s.setting(given)
	if s.fail != nil {
		s.figures(given)
		s.progress = s.fail.At
	}
	s.words()
	s.boards()
	s.growth = growthOf(res.Samples)
	return s
}

// choose picks the failure to explain: the first that is no consequence, of the
// last attempt that has one.
func (s *signals) choose() {
	last := -1
	for _, f := range s.res.Failures {
		if !f.Class.IsNoise() {
			last = max(last, f.Attempt)
		}
	}
	pick := -1
	for i, f := range s.res.Failures {
		if f.Attempt == last && !f.Class.IsNoise() && (pick < 0 || better(f, s.res.Failures[pick])) {
			pick = i
		}
	}
	if pick >= 0 {
		f := s.res.Failures[pick]
		s.fail, s.class, s.phase, s.frames, s.code = &f, f.Class, f.Phase, f.Frames, f.Code
		s.earlier, s.later = s.res.Failures[:pick], s.res.Failures[pick+1:]
		s.verdict = NotOutOfMemory
		if f.Class.IsOOM() {
			s.verdict = OutOfMemory
		}
		return
	}
	if t := s.res.Trace; t != nil && !t.Ends {
		s.phase, s.frames, s.code, s.verdict = t.Phase, t.Frames, t.Code, TraceOnly
	}
}

// better reports whether a later failure explains more than the one chosen so
// far: figures of the same allocation that a wrapping exception repeats, the
// kernel's word on a process that was only seen to be killed, or a device's
// message after a warning that the program survived.
func better(later, chosen oomlog.Failure) bool {
	switch {
	case !chosen.Class.IsOOM() && !fatal(chosen) && later.Class.IsOOM() && later.Certain && fatal(later):
		return true // a warning about the driver, a NaN, a full disk of the logger
	case chosen.Class == oomlog.ClassVRAM && !chosen.Certain && later.Class == oomlog.ClassNumerical && fatal(later):
		return true // a script that calls every RuntimeError an OOM
	case chosen.Class == oomlog.ClassHostKilled && later.Class == oomlog.ClassHost:
		return true
	case chosen.Class == oomlog.ClassVRAM && later.Class == oomlog.ClassVRAM && !chosen.Figures.Capacity.Known && !chosen.Figures.Tried.Known && (later.Figures.Capacity.Known || later.Figures.Tried.Known) && chosen.Rank == later.Rank:
		return later.Source.Line-chosen.Source.Line < 200
	case chosen.Class == later.Class && len(chosen.Frames) == 0 && len(later.Frames) > 0 && !chosen.Figures.Tried.Known && chosen.Rank == later.Rank:
		return later.Source.Line-chosen.Source.Line < 200 // the same, once more with its traceback
	case chosen.Class == oomlog.ClassVRAM && !chosen.Certain && later.Certain && later.Class == oomlog.ClassVRAM:
		return true
	case chosen.Class == oomlog.ClassVRAMProbable && later.Class == oomlog.ClassVRAM:
		return true
	}
	return false
}

// fatal reports whether a message ended something: it is an exception or a
// signal, not a warning.
func fatal(f oomlog.Failure) bool {
	low := strings.ToLower(f.Text)
	if strings.Contains(low, "warn") {
		return false
	}
	first, _, _ := strings.Cut(low, " ")
	return len(f.Frames) > 0 || strings.HasSuffix(first, "error:") || strings.HasSuffix(first, "error") || strings.HasSuffix(first, "exception:") || f.Class == oomlog.ClassHostKilled || f.Class == oomlog.ClassHost
}

func (s *signals) figures(given Given) {
	f := &s.fail.Figures
	s.capacity, s.hasCapacity = f.Capacity.Bytes, f.Capacity.Known
	if given.Capacity > 0 && !s.hasCapacity {
		s.capacity, s.hasCapacity = given.Capacity, true
	}
	s.tried, s.hasTried = f.Tried.Bytes, f.Tried.Known
	s.free, s.hasFree = f.Free.Bytes, f.Free.Known
	s.allocated = f.Allocated.Bytes
	s.reserved, s.hasReserved = f.Reserved.Bytes, f.Reserved.Known
	s.cached, s.hasCached = f.Cached.Bytes, f.Cached.Known
	s.private = f.Private.Bytes
	if this := thisProcess(f); this.Known {
		s.this, s.hasThis = this.Bytes, true
	}
	s.others = otherProcesses(f)
	for _, p := range s.others {
		s.othersSum += p.Memory.Bytes
	}
	s.precision = f.Capacity.Within + f.Free.Within + f.Reserved.Within + f.Tried.Within
	s.spilled = s.hasCapacity && (s.reserved > s.capacity+s.precision || s.allocated > s.capacity+s.precision)
	if s.hasCapacity && s.hasFree && (s.hasReserved || s.hasThis) && !s.spilled {
		s.outside, s.hasOutside = max(s.capacity-s.held()-s.free, 0), true
	}
	if s.hasTried && s.hasFree && s.hasCached && !s.spilled {
		s.slack, s.hasSlack = s.free+s.cached-s.tried, true
	}
	for _, p := range f.Processes {
		if !p.Memory.Known {
			s.platform = "wsl"
		}
	}
	if strings.Contains(s.fail.Text, "17179869184") && s.platform == "" && s.fail.Pattern != "torch.async" { // there it means that no limit is set
		s.platform = "wsl"
	}
}

// held is what the message says that this process has of the card, with what is
// cached, as far as it says so.
func (s *signals) held() units.Bytes {
	switch {
	case s.hasReserved:
		return s.reserved
	case s.hasThis:
		return s.this
	}
	return s.allocated
}

// setting reads what the text and the user say of the setting.
func (s *signals) setting(given Given) {
	facts := s.res.Facts
	before := int64(0)
	if s.fail != nil && len(s.res.Names) == 1 { // offsets of several texts cannot be compared
		before = s.fail.Source.Offset
	}
	text := func(kind oomlog.FactKind) string {
		if v, ok := facts.Last(kind, before); ok {
			return v.Value
		}
		v, _ := facts.Get(kind)
		return v.Value
	}
	count := func(kind oomlog.FactKind, given int) int {
		if given > 0 {
			return given
		}
		if n := facts.Int(kind); n > 0 && n < 1<<31 {
			return int(n)
		}
		return 0
	}
	s.batch = count(oomlog.FactBatch, given.MicroBatch)
	s.evalBatch = count(oomlog.FactEvalBatch, 0)
	s.accumulation = count(oomlog.FactAccumulation, given.Accumulation)
	s.sequence = count(oomlog.FactSequence, given.Sequence)
	s.world = count(oomlog.FactWorldSize, given.WorldSize)
	if s.world == 0 && s.res.Ranks > 1 {
		s.world = s.res.Ranks
	}
	s.dtype = or(given.DType, text(oomlog.FactDType))
	s.optimizer = or(given.Optimizer, text(oomlog.FactOptimizer))
	s.model = or(given.Model, text(oomlog.FactModel))
	s.gpu = or(given.GPU, text(oomlog.FactGPU))
	s.platform = or(s.platform, text(oomlog.FactPlatform))
	s.engineShare = text(oomlog.FactEngineShare)
	s.checkpointing = given.Checkpointing
	if s.checkpointing == nil {
		if yes, known := facts.Is(oomlog.FactCheckpointing); known {
			s.checkpointing = &yes
		}
	}
	if conf := text(oomlog.FactAllocConf); strings.Contains(conf, "expandable_segments") {
		on := strings.Contains(strings.ToLower(conf), "true")
		s.expandable = &on
	}
	s.software = text(oomlog.FactFramework)
	s.framework = given.Framework
	if s.framework == "" {
		s.framework = frameworkOf(facts)
	}
	_, sharded := facts.Get(oomlog.FactFSDP)
	_, zero := facts.Get(oomlog.FactZeROStage)
	s.distributed = s.world > 1 || s.res.Ranks > 1 || sharded || zero
}

// frameworkOf ranks the frameworks that left traces: a trainer on top of an
// engine, or a program on top of a trainer, is what the user configures.
func frameworkOf(facts oomlog.Facts) remedy.Framework {
	seen := map[string]bool{}
	for _, f := range facts {
		if f.Kind == oomlog.FactFramework {
			seen[f.Value] = true
		}
	}
	for _, f := range slices.Concat(remedy.Stacks(), []remedy.Framework{remedy.HFTrainer, remedy.Lightning, remedy.DeepSpeed, remedy.Accelerate}) {
		if seen[string(f)] {
			return f
		}
	}
	return remedy.PyTorch
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// words joins the traceback into one text and reads the kind of workload.
func (s *signals) words() {
	var b strings.Builder
	for _, f := range s.frames {
		b.WriteString(f.File + " " + f.Func + " " + f.Code + "\n")
	}
	for _, c := range s.code {
		b.WriteString(c + "\n")
	}
	s.trace = strings.ToLower(strings.ReplaceAll(b.String(), "\\", "/"))
	all := strings.ToLower(s.trace + " " + s.model)
	for _, w := range []string{"llama", "qwen", "mistral", "gpt", "gemma", "causallm", "trl/", "lm_head", "tokeniz", "bert", "modeling_", "peft/", "vllm", "megatron", "t5", "deepseek", "phi3", "mixtral", "/sft", "sft.", "_sft", "/dpo", "/grpo", "llamafactory", "axolotl"} {
		s.language = s.language || strings.Contains(all, w)
	}
	for _, w := range []string{"diffusers", "unet", "vae", "stable_diffusion", "sdxl", "flux"} {
		s.diffusion = s.diffusion || strings.Contains(all, w)
	}
	s.language = s.language || s.sequence > 0
	for _, w := range []string{"distributed", "nccl", "deepspeed", "fsdp", "ddp"} {
		s.distributed = s.distributed || strings.Contains(s.trace, w)
	}
	for _, f := range s.res.Failures {
		s.distributed = s.distributed || strings.HasPrefix(f.Pattern, "nccl.")
	}
}

// sharedBoards are capacities that only boards with one memory for CPU and GPU
// report: the installed memory less what the firmware keeps. No discrete NVIDIA
// card has them. Source: totals in public messages and specifications of these
// boards (GB10: 128 GB; AGX Orin: 64 and 32 GB; Orin Nano: 8 GB).
var sharedBoards = [...]struct {
	low, high float64 // GiB
	platform  string
}{
	{118.5, 123.5, "gb10"},
	{60.9, 62.9, "jetson"},
	{29.4, 30.9, "jetson"},
	{7.30, 7.48, "jetson"},
}

// boards recognises boards whose GPU shares the host's memory.
func (s *signals) boards() {
	if s.platform != "" || s.fail == nil || !s.hasCapacity {
		return
	}
	gib := s.capacity.GiB()
	switch s.fail.Device {
	case "HIP":
		// Discrete AMD cards report their size less a few MiB (15.98, 19.98,
		// 23.98, 255.98 GiB); an APU reports half of the host's memory or the
		// part that the firmware carved out.
		if part := gib - float64(int(gib)); part < 0.9 && part > 0.05 {
			s.platform = "apu"
		}
	case "CUDA":
		for _, b := range sharedBoards {
			if gib >= b.low && gib <= b.high {
				s.platform = b.platform
			}
		}
	}
}

// sees reports whether the traceback has one of the words.
func (s *signals) sees(words ...string) bool {
	for _, w := range words {
		if strings.Contains(s.trace, w) {
			return true
		}
	}
	return false
}

// figuresKnown reports whether the message is one with totals.
func (s *signals) figuresKnown() bool { return s.hasCapacity && s.hasOutside }

// growth is a rise of the memory that the run printed along the way.
type growth struct {
	first, last oomlog.Sample
	n           int
}

// growthOf returns the trend of the printed memory if it rises nearly all the
// way: by more than a tenth, at nearly every reading, or by as much each time. Warm-up alone levels
// off, and so does the running maximum that many loggers print.
func growthOf(samples []oomlog.Sample) *growth {
	var values []oomlog.Sample
	for _, v := range samples {
		if v.Allocated.Known {
			values = append(values, v)
		}
	}
	if len(values) < 6 {
		return nil
	}
	tail := values[len(values)/3:] // leave the warm-up out
	rises, falls := 0, 0
	for i := 1; i < len(tail); i++ {
		switch d := tail[i].Allocated.Bytes - tail[i-1].Allocated.Bytes; {
		case d > 0:
			rises++
		case d < 0:
			falls++
		}
	}
	first, last := tail[0], tail[len(tail)-1]
	rise := share(last.Allocated.Bytes-first.Allocated.Bytes, first.Allocated.Bytes)
	least, most := units.Bytes(1<<62), units.Bytes(0)
	for i := 1; i < len(tail); i++ {
		d := tail[i].Allocated.Bytes - tail[i-1].Allocated.Bytes
		least, most = min(least, d), max(most, d)
	}
	even := len(tail) >= 6 && least > 0 && most <= 2*least // so much for each step
	steady := len(tail) >= 8 && 10*rises >= 9*(len(tail)-1) && rise > 0.02
	mostly := rises >= 4*max(falls, 1) && 2*rises >= len(tail) && rise > 0.1
	if !steady && !mostly && !even {
		return nil
	}
	return &growth{first, last, len(tail)}
}

package diagnose

import (
	"unoom/internal/oomlog"
	"unoom/internal/remedy"
	"unoom/internal/units"
)

// absurd is beyond what any tensor can be: 128 TiB, the user address space of
// a process. A larger request is a number read from uninitialised memory or an
// overflow.
const absurd = 128 * units.TiB

// context is what a process and a desktop take outside PyTorch on an ordinary
// machine; on a small card that is a large share and still nobody else's.
const context = 1100 * units.MiB

// desktop is what a context and a desktop with a few windows take of a card for
// games; cards up to 8 GiB are mostly in such machines.
const desktop = 1500 * units.MiB

// ordinary returns what may lie outside PyTorch without anybody else on the card.
func (s *signals) ordinary() units.Bytes {
	if s.capacity <= 8*units.GiB+256*units.MiB {
		return desktop
	}
	return context
}

// figureRules: what the quantities of the message say. The subtraction comes
// first: what neither PyTorch nor the free figure explains decides whether the
// job or somebody else has the card.
func figureRules() []logRule {
	return []logRule{
		{"fig.held_elsewhere", []vote{
			{remedy.OtherProcess, strong + 1}, {remedy.OrphanProcess, strong}, {remedy.WrongGPU, strong - 0.4}, {remedy.RanksShareGPU, 2.6}, {remedy.ColocatedEngine, weak}, {remedy.WorkerCUDAContexts, weak},
		}, heldElsewhere},
		{"fig.process_listed", []vote{{remedy.OtherProcess, fair}, {remedy.OrphanProcess, weak}, {remedy.WrongGPU, weak}}, processListed},
		{"fig.like_ranks", []vote{{remedy.RanksShareGPU, strong + 2}, {remedy.WorkerCUDAContexts, fair}, {remedy.OtherProcess, -fair}, {remedy.OrphanProcess, -fair}, {remedy.WrongGPU, -fair}}, likeRanks},
		{"fig.small_contexts", []vote{{remedy.WorkerCUDAContexts, strong}, {remedy.RanksShareGPU, weak}}, smallContexts},
		{"fig.tiny_request", []vote{{remedy.LeakGraphRetained, 1.0}, {remedy.LeakStateGrowth, 0.5}, {remedy.LongestBatch, -1}, {remedy.InputTooLarge, -1}}, tinyRequest},
		{"fig.unexplained_outside", []vote{{remedy.OtherProcess, 2.2}, {remedy.NCCLOutsideAllocator, 1.0}, {remedy.OrphanProcess, weak}, {remedy.BatchTooLarge, 1.2}, {remedy.ColocatedEngine, trace}, {remedy.WrongGPU, trace}, {remedy.GPUTooSmall, 1.0}}, unexplainedOutside},
		{"fig.shared_card", []vote{{remedy.OtherProcess, 2.4}, {remedy.RanksShareGPU, weak}, {remedy.ColocatedEngine, weak}, {remedy.BatchTooLarge, 2}, {remedy.GPUTooSmall, weak}}, sharedCard},
		{"fig.this_outside", []vote{{remedy.NCCLOutsideAllocator, strong}, {remedy.BatchTooLarge, weak}}, thisOutside},
		{"fig.desktop_on_small_card", []vote{{remedy.GPUTooSmall, fair}, {remedy.BatchTooLarge, weak}, {remedy.OtherProcess, weak}, {remedy.ActivationsNoCheckpointing, weak}}, desktopOnSmallCard},
		{"fig.allowed", []vote{{remedy.MemoryCap, decisive}}, allowed},
		{"fig.plenty_free", []vote{{remedy.MemoryCap, 2.0}, {remedy.HostRAMOrCommit, 2.3}, {remedy.DriverOrHardware, 2.2}, {remedy.PinnedHostMemory, weak}, {remedy.UnifiedMemoryBoard, weak}}, plentyFree},
		{"fig.larger_than_card", []vote{{remedy.InputTooLarge, strong}, {remedy.ShapeOrDataBug, fair}, {remedy.BatchTooLarge, 2}, {remedy.SequenceTooLong, weak}, {remedy.LongestBatch, trace}}, largerThanCard},
		{"fig.larger_than_cards", []vote{{remedy.InputTooLarge, 3.2}, {remedy.ShapeOrDataBug, 1.8}, {remedy.BatchTooLarge, weak}, {remedy.SequenceTooLong, weak}}, largerThanCards},
		{"fig.would_fit", []vote{{remedy.HostRAMOrCommit, 1.8}, {remedy.DriverOrHardware, 1.2}, {remedy.GPUTooSmall, 1.8}}, wouldFit},
		{"fig.nothing_allocated", []vote{{remedy.UnifiedMemoryBoard, fair}, {remedy.DriverOrHardware, weak}, {remedy.GPUTooSmall, trace}}, nothingAllocated},
		{"fig.absurd", []vote{{remedy.DriverOrHardware, strong}, {remedy.ShapeOrDataBug, strong - 0.4}, {remedy.CascadeFromOtherError, 2}}, absurdRequest},
		{"fig.one_huge_request", []vote{{remedy.InputTooLarge, 2}, {remedy.BatchTooLarge, 2}, {remedy.LongestBatch, weak}, {remedy.SequenceTooLong, trace}}, oneHugeRequest},
		{"fig.another_whole_card", []vote{{remedy.ShapeOrDataBug, 3.4}, {remedy.InputTooLarge, 2}, {remedy.LongestBatch, 2}}, anotherWholeCard},
		{"fig.fragmented", []vote{{remedy.Fragmentation, strong}, {remedy.LongestBatch, trace}, {remedy.BatchTooLarge, trace}}, fragmented},
		{"fig.no_slack", []vote{{remedy.Fragmentation, -strong}}, noSlack},
		{"fig.filled", []vote{
			{remedy.BatchTooLarge, 2.2}, {remedy.ActivationsNoCheckpointing, 1.7}, {remedy.GPUTooSmall, 1.6}, {remedy.LongestBatch, 1.2}, {remedy.InputTooLarge, 1.0}, {remedy.LeakGraphRetained, trace},
			{remedy.PrecisionNotApplied, trace}, {remedy.OptimizerState, 0.4},
		}, filled},
		{"fig.filled_small_card", []vote{{remedy.ActivationsNoCheckpointing, 1.3}, {remedy.GPUTooSmall, 1.0}}, filledSmallCard},
		{"fig.filled_tiny_card", []vote{{remedy.GPUTooSmall, 1.2}}, filledTinyCard},
		{"fig.filled_large_card", []vote{{remedy.LogitsVocab, weak}, {remedy.TrainStateTooLarge, trace}, {remedy.SequenceTooLong, 1.0}}, filledLargeCard},
		{"fig.large_request_of_language_model", []vote{{remedy.LogitsVocab, 1.5}, {remedy.SequenceTooLong, 1.2}}, languageRequest},
		{"fig.private_pools", []vote{{remedy.CompileOrCUDAGraph, strong}}, privatePools},
		{"fig.spilled", []vote{{remedy.GPUTooSmall, weak}, {remedy.BatchTooLarge, weak}, {remedy.HostRAMOrCommit, trace}}, spilled},
		{"fig.only_this_process", []vote{{remedy.BatchTooLarge, 2}, {remedy.InputTooLarge, weak}, {remedy.GPUTooSmall, weak}}, onlyThisProcess},
		{"fig.apu", []vote{{remedy.UnifiedMemoryBoard, fair}}, apu},
	}
}

// hasTotals is the condition of all rules about a full card.
func (s *signals) hasTotals() bool { return s.memory() && s.figuresKnown() && s.hasTried }

func heldElsewhere(s *signals) (hit, bool) {
	ok := s.memory() && s.figuresKnown() && s.outsideShare() > 0.5 && s.outside > 3*context/2 && !s.hasThis
	if s.memory() && s.hasThis && s.hasCapacity {
		// The process's own line is there, so the rest is others' for certain.
		rest := s.capacity - s.free - s.this
		if share(rest, s.capacity) > 0.3 && rest > context {
			return s.at(rest, percent(rest, s.capacity)), true
		}
	}
	if s.memory() && s.figuresKnown() && s.outsideShare() > 0.5 && s.capacity <= 2*units.GiB {
		return hit{}, false // a context alone fills half of such a card
	}
	return s.at(s.outside, percent(s.outside, s.capacity)), ok
}

func processListed(s *signals) (hit, bool) {
	if !s.memory() || len(s.others) == 0 || share(s.othersSum, s.capacity) < 0.2 {
		return hit{}, false
	}
	largest := s.others[0]
	for _, p := range s.others {
		if p.Memory.Bytes > largest.Memory.Bytes {
			largest = p
		}
	}
	return s.at(largest.PID, largest.Memory.Bytes, percent(s.othersSum, s.capacity)), true
}

// likeRanks: several other processes of nearly the same size beside this one,
// as when each rank of a job, or each worker, opens the same card.
func likeRanks(s *signals) (hit, bool) {
	if !s.memory() || len(s.others) < 2 {
		return hit{}, false
	}
	low, high := s.others[0].Memory.Bytes, s.others[0].Memory.Bytes
	for _, p := range s.others {
		low, high = min(low, p.Memory.Bytes), max(high, p.Memory.Bytes)
	}
	return s.at(len(s.others), low, high), low >= 150*units.MiB && high*10 <= low*13
}

// smallContexts: many processes that hold no more than a CUDA context, in which
// nothing was computed (a rank has NCCL's buffers and libraries on top).
func smallContexts(s *signals) (hit, bool) {
	n := 0
	for _, p := range s.others {
		if p.Memory.Bytes < 700*units.MiB && p.Memory.Bytes > 150*units.MiB {
			n++
		}
	}
	return s.at(n), s.memory() && n >= 4
}

// tinyRequest: the smallest segment that PyTorch asks for (2 MiB, for tensors of
// up to 1 MiB) did not fit. A batch that is too large fails at a large tensor;
// memory that fills up little by little fails at any.
// Source: pytorch c10/cuda/CUDACachingAllocator.cpp, kSmallBuffer.
func tinyRequest(s *signals) (hit, bool) {
	return s.at(s.tried), s.memory() && s.torchFull() && s.tried <= 2*units.MiB
}

func unexplainedOutside(s *signals) (hit, bool) {
	o := s.outsideShare()
	return s.at(s.outside, percent(s.outside, s.capacity)), s.hasTotals() && !s.hasThis && o >= 0.18 && o <= 0.5 && s.outside > s.ordinary() && s.tried <= s.capacity && !s.plentyFree()
}

// sharedCard: this process fills what others leave of the card, and they hold a
// part that matters.
func sharedCard(s *signals) (hit, bool) {
	if _, held := heldElsewhere(s); held || !s.hasTotals() || !s.hasThis || s.plentyFree() || s.tried > s.capacity {
		return hit{}, false
	}
	rest := max(s.capacity-s.free-s.this, 0)
	return s.at(rest, percent(rest, s.capacity)), share(rest, s.capacity) >= 0.18
}

// thisOutside: the process's own line shows that much of its memory is not
// PyTorch's.
func thisOutside(s *signals) (hit, bool) {
	own := s.this - s.reserved
	return s.at(own, percent(own, s.capacity)), s.memory() && s.hasThis && s.hasReserved && share(own, s.capacity) > 0.12 && own > 2*units.GiB
}

func desktopOnSmallCard(s *signals) (hit, bool) {
	return s.at(s.outside), s.hasTotals() && !s.hasThis && s.outsideShare() >= 0.18 && s.outside <= s.ordinary()
}

func allowed(s *signals) (hit, bool) {
	if s.fail == nil || !s.fail.Figures.Allowed.Known || s.fail.Pattern == "torch.mps" {
		return hit{}, false
	}
	limit := s.fail.Figures.Allowed.Bytes
	return s.at(limit, s.free), s.hasCapacity && limit < s.capacity && s.free > s.tried
}

func plentyFree(s *signals) (hit, bool) {
	return s.at(s.free, s.tried), s.memory() && s.plentyFree() && !s.limited()
}

func largerThanCard(s *signals) (hit, bool) {
	return s.at(s.tried, s.capacity), s.memory() && s.hasTried && s.hasCapacity && s.tried > s.capacity && s.tried < absurd
}

// commonCard is more than nearly all cards that people train on have; a message
// that was cut before its total still says so much.
const commonCard = 96 * units.GiB

func largerThanCards(s *signals) (hit, bool) {
	return s.at(s.tried), s.memory() && s.hasTried && !s.hasCapacity && s.tried > commonCard/2 && s.tried < absurd
}

// wouldFit: a little more is free than was asked for, and yet it failed: page
// granularity, a race, or a driver that counts on the host's memory.
func wouldFit(s *signals) (hit, bool) {
	return s.at(s.free, s.tried), s.hasTotals() && s.free > s.tried+s.tried/20 && !s.plentyFree() && !s.limited()
}

// nothingAllocated: the first large request already exceeds what the runtime
// shows of the card, while the job holds nothing.
func nothingAllocated(s *signals) (hit, bool) {
	return s.at(s.tried, s.capacity), s.memory() && s.hasCapacity && s.hasReserved && s.reserved < 64*units.MiB && s.hasFree && share(s.free, s.capacity) > 0.9
}

func absurdRequest(s *signals) (hit, bool) {
	return s.at(s.tried), s.memory() && s.hasTried && s.tried >= absurd
}

func oneHugeRequest(s *signals) (hit, bool) {
	part := share(s.tried, s.capacity)
	if _, whole := anotherWholeCard(s); whole {
		return hit{}, false
	}
	return s.at(s.tried, percent(s.tried, s.capacity)), s.memory() && s.hasCapacity && s.hasTried && part > 0.3 && s.tried <= s.capacity && s.outsideShare() < 0.5 && !s.spilled
}

// anotherWholeCard: a request of nearly the card's size on top of a full card.
func anotherWholeCard(s *signals) (hit, bool) {
	return s.at(s.tried, s.allocated), s.memory() && s.hasCapacity && share(s.tried, s.capacity) > 0.75 && s.tried <= s.capacity && share(s.allocated, s.capacity) > 0.6
}

// fragmented: PyTorch has given back every releasable block before it prints
// the message, so what is cached sits in segments that are partly in use. If
// all pieces together would hold the request with room to spare, arrangement is
// the problem.
func fragmented(s *signals) (hit, bool) {
	if !s.memory() || !s.hasSlack || !s.hasCapacity || s.tried > s.capacity || s.plentyFree() {
		return hit{}, false
	}
	return s.at(s.cached, s.free, s.tried, s.slack), share(s.slack, s.capacity) >= 0.1 && share(s.cached, s.capacity) >= 0.1
}

func noSlack(s *signals) (hit, bool) {
	return s.at(s.slack), s.memory() && s.hasSlack && s.slack < 0
}

func filled(s *signals) (hit, bool) {
	return s.at(percent(s.held(), s.capacity)), s.memory() && s.torchFull() && !s.muchFree()
}

// filledSmallCard: on 8 GiB and less, what fills the card is nearly always a
// recipe that needs checkpointing or a bigger card.
func filledSmallCard(s *signals) (hit, bool) {
	return s.at(s.capacity), s.memory() && s.torchFull() && s.framework.Trains() && s.capacity <= 8*units.GiB+256*units.MiB
}

// filledTinyCard: with 6 GiB and less the published recipes do not count at all.
func filledTinyCard(s *signals) (hit, bool) {
	return s.at(s.capacity), s.memory() && s.torchFull() && s.capacity <= 6*units.GiB+256*units.MiB
}

// filledLargeCard: cards of 70 GiB and more train language models.
func filledLargeCard(s *signals) (hit, bool) {
	return s.at(s.capacity), s.memory() && s.torchFull() && s.capacity >= 70*units.GiB && !s.diffusion
}

// languageRequest: outside of an optimizer step, the largest tensors of a
// language model are its logits and, with a long sequence, its activations; a
// weight has well under 2 GiB.
func languageRequest(s *signals) (hit, bool) {
	return s.at(s.tried), s.hasTotals() && s.torchFull() && s.language && s.tried >= 2*units.GiB && s.phase != oomlog.PhaseStep && s.phase != oomlog.PhaseLoad && s.phase != oomlog.PhaseSave && s.phase != oomlog.PhaseResume
}

func privatePools(s *signals) (hit, bool) {
	return s.at(s.private, percent(s.private, s.capacity)), s.memory() && s.hasCapacity && share(s.private, s.capacity) > 0.08 && !s.limited()
}

func spilled(s *signals) (hit, bool) {
	return s.at(max(s.allocated, s.reserved), s.capacity), s.memory() && s.spilled
}

func onlyThisProcess(s *signals) (hit, bool) {
	return s.at(s.this), s.memory() && s.hasThis && !s.hasReserved && share(s.this, s.capacity) > 0.7 && !s.torchFull()
}

func apu(s *signals) (hit, bool) {
	return s.at(s.capacity), s.memory() && s.platform == "apu"
}

// percent writes a share for people: "71 %".
func percent(part, whole units.Bytes) string {
	return itoa(int(share(part, whole)*100+0.5)) + " %"
}

// call writes a frame as people say it: "step (hybrid_adam.py:112)".
func call(f oomlog.Frame) string {
	name := f.File
	for i := len(name) - 1; i >= 0; i-- {
		if name[i] == '/' || name[i] == '\\' {
			name = name[i+1:]
			break
		}
	}
	if f.Line > 0 {
		name += ":" + itoa(f.Line)
	}
	if f.Func == "" {
		return name
	}
	return f.Func + " (" + name + ")"
}

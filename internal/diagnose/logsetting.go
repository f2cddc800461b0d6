package diagnose

import (
	"unoom/internal/oomlog"
	"unoom/internal/remedy"
)

// settingRules: what the text says of the setting.
func settingRules() []logRule {
	return []logRule{
		{"set.runs_only", []vote{{remedy.GPUTooSmall, weak}, {remedy.InputTooLarge, 1.2}, {remedy.BatchTooLarge, trace}, {remedy.ActivationsNoCheckpointing, -strong}, {remedy.OptimizerState, -strong}, {remedy.TrainStateTooLarge, -strong}, {remedy.LeakGraphRetained, -strong}, {remedy.ShardingNotEffective, -strong}, {remedy.LogitsVocab, -strong}, {remedy.ResumeDoubleLoad, -strong}, {remedy.LongestBatch, -weak}}, runsOnly},
		{"set.no_checkpointing", []vote{{remedy.ActivationsNoCheckpointing, 1.8}}, noCheckpointing},
		{"set.checkpointing_on", []vote{{remedy.ActivationsNoCheckpointing, -fair}}, checkpointingOn},
		{"set.long_sequence", []vote{{remedy.SequenceTooLong, 2}, {remedy.LogitsVocab, trace}}, longSequence},
		{"set.batch_one", []vote{{remedy.BatchTooLarge, -fair}, {remedy.GPUTooSmall, trace}, {remedy.TrainStateTooLarge, 0.5}}, batchOne},
		{"set.large_batch", []vote{{remedy.BatchTooLarge, 1.2}}, largeBatch},
		{"set.eval_batch", []vote{{remedy.EvalWorkloadLarger, 2}}, evalBatchLarger},
		{"set.expandable_on", []vote{{remedy.Fragmentation, -fair}}, expandableOn},
		{"set.engine_share", []vote{{remedy.ColocatedEngine, 2}, {remedy.Preallocation, trace}}, engineShare},
		{"set.wsl", []vote{{remedy.HostRAMOrCommit, weak}, {remedy.PinnedHostMemory, weak}}, onWSL},
		{"set.board", []vote{{remedy.UnifiedMemoryBoard, strong}}, sharedBoard},
		{"set.workers", []vote{{remedy.WorkerCUDAContexts, trace}}, manyWorkers},
		{"set.compile", []vote{{remedy.CompileOrCUDAGraph, weak}}, compiles},
		{"set.fp32", []vote{{remedy.PrecisionNotApplied, weak}}, fp32},
		{"set.distributed_outside", []vote{{remedy.NCCLOutsideAllocator, weak}}, distributedOutside},
	}
}

func (s *signals) fact(kind oomlog.FactKind) hit {
	f, _ := s.res.Facts.Get(kind)
	return hit{args: []any{f.Key, f.Value}, at: f.Source}
}

// tight reports whether the setting can matter: an out-of-memory whose figures
// do not put the blame elsewhere.
func (s *signals) tight() bool {
	return s.memory() && s.class != oomlog.ClassEngine && s.class != oomlog.ClassPinned && (!s.figuresKnown() || s.torchFull() || s.spilled)
}

// runsOnly: a program that runs models keeps nothing for a backward pass.
func runsOnly(s *signals) (hit, bool) {
	f, _ := s.res.Facts.Get(oomlog.FactFramework)
	return hit{args: []any{s.framework.Name()}, at: f.Source}, s.tight() && !s.framework.Trains()
}

func noCheckpointing(s *signals) (hit, bool) {
	return s.fact(oomlog.FactCheckpointing), s.tight() && s.checkpointing != nil && !*s.checkpointing
}

func checkpointingOn(s *signals) (hit, bool) {
	return s.fact(oomlog.FactCheckpointing), s.tight() && s.checkpointing != nil && *s.checkpointing
}

func longSequence(s *signals) (hit, bool) {
	return hit{args: []any{s.sequence}, at: s.fact(oomlog.FactSequence).at}, s.tight() && s.sequence >= 8192
}

func batchOne(s *signals) (hit, bool) {
	return s.fact(oomlog.FactBatch), s.tight() && s.batch == 1
}

func largeBatch(s *signals) (hit, bool) {
	return hit{args: []any{s.batch}, at: s.fact(oomlog.FactBatch).at}, s.tight() && (s.batch >= 64 || s.language && s.batch >= 16)
}

func evalBatchLarger(s *signals) (hit, bool) {
	return hit{args: []any{s.evalBatch, s.batch}, at: s.fact(oomlog.FactEvalBatch).at}, s.phase == oomlog.PhaseEvaluation && s.batch > 0 && s.evalBatch > s.batch
}

func expandableOn(s *signals) (hit, bool) {
	return s.fact(oomlog.FactAllocConf), s.memory() && s.expandable != nil && *s.expandable
}

func engineShare(s *signals) (hit, bool) {
	return s.fact(oomlog.FactEngineShare), s.memory() && s.engineShare != "" && s.sees("trainer", "trl/", "verl/", "rollout")
}

func onWSL(s *signals) (hit, bool) {
	_, bare := bareRuntime(s)
	_, plenty := plentyFree(s)
	return s.at(s.platform), (s.platform == "wsl" || s.platform == "windows") && (bare || plenty)
}

func sharedBoard(s *signals) (hit, bool) {
	return s.at(s.platform), s.memory() && (s.platform == "jetson" || s.platform == "gb10")
}

func manyWorkers(s *signals) (hit, bool) {
	_, outside := heldElsewhere(s)
	return s.fact(oomlog.FactWorkers), outside && s.res.Facts.Int(oomlog.FactWorkers) >= 4
}

func compiles(s *signals) (hit, bool) {
	yes, _ := s.res.Facts.Is(oomlog.FactCompile)
	return s.fact(oomlog.FactCompile), yes && s.tight()
}

func fp32(s *signals) (hit, bool) {
	return hit{args: []any{s.dtype}, at: s.fact(oomlog.FactDType).at}, s.tight() && (s.dtype == "float32" || s.dtype == "torch.float32" || s.dtype == "fp32" || s.dtype == "32")
}

func distributedOutside(s *signals) (hit, bool) {
	_, outside := unexplainedOutside(s)
	return s.at(), outside && s.distributed
}

package remedy

import (
	"unoom/internal/account"
	"unoom/internal/units"
)

// A Phase is the part of a training run in which memory is at its peak or ran
// out.
type Phase string

// The phases, in the order of a run.
const (
	PhaseUnknown    Phase = ""
	PhaseLoad       Phase = "load"
	PhaseForward    Phase = "forward"
	PhaseLoss       Phase = "loss"
	PhaseBackward   Phase = "backward"
	PhaseStep       Phase = "optimizer_step"
	PhaseEvaluation Phase = "evaluation"
	PhaseSave       Phase = "save"
	PhaseResume     Phase = "resume"
)

// A Framework is the user's own stack, in whose words a remedy is applied.
type Framework string

// The frameworks a remedy can be written for.
const (
	PyTorch    Framework = "pytorch"
	HFTrainer  Framework = "hf_trainer"
	Accelerate Framework = "accelerate"
	Lightning  Framework = "lightning"
	DeepSpeed  Framework = "deepspeed"
)

// A Weighted cause is one that stays possible, with the share of cases that
// look like this one in which it is the true cause (0 to 1).
type Weighted struct {
	Cause      Cause
	Confidence float64
}

// A Situation is all that a remedy needs to know of one failure to say whether
// it helps here, how much it frees and what it costs. Zero values mean "not
// known"; a remedy that needs an unknown says so instead of guessing.
type Situation struct {
	Account   *account.Account // nil where the message has no figures
	Tried     units.Bytes      // the request that failed; 0 unknown
	Causes    []Weighted       // ranked
	Phase     Phase
	Framework Framework
	GPU       string // as the user wrote it

	// Slack is free + cached - tried: what would be left if all unused pieces
	// were one. It is nil where the figures are not known. Negative: no
	// allocator setting can help.
	Slack *units.Bytes

	MicroBatch, Accumulation, Sequence, WorldSize int
	DType, Optimizer, Model                       string
	Checkpointing                                 *bool
	ExpandableSegments                            *bool
}

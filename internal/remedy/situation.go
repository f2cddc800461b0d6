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
	// OtherStack is JAX, TensorFlow and the like: there the pages have only
	// what holds for any framework.
	OtherStack Framework = "other"
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
	GPU       string // as the user wrote it, else as the log names it

	// Slack is free + cached - tried: what would be left if all unused pieces
	// were one. It is nil where the figures are not known. Negative: no
	// allocator setting can help.
	Slack *units.Bytes

	// Cap is a limit on this process that is below the capacity: a memory
	// fraction that somebody set ("1.05 GiB allowed"); 0 where none is known.
	Cap units.Bytes

	// The setting, as far as the log or the user says.
	MicroBatch, Accumulation, Sequence, WorldSize int
	EvalBatch                                     int // 0 unknown
	DType, Optimizer, Model                       string
	Params                                        int64             // parameters of the model, 0 unknown
	Vocabulary                                    int               // 0 unknown
	Method                                        string            // full, lora, qlora; "" unknown
	Sharding                                      string            // none, dp, ddp, zero1, zero2, zero3, fsdp; "" unknown
	Attention                                     string            // eager, sdpa, flash; "" unknown
	AllocatorConf                                 string            // value of PYTORCH_CUDA_ALLOC_CONF, "" unknown
	Platform                                      string            // linux, wsl, windows, jetson, macos; "" unknown
	Versions                                      map[string]string // library to version, as far as the text says
	Workers                                       int               // DataLoader workers, 0 unknown
	Checkpointing                                 *bool
	ExpandableSegments                            *bool
	Compile                                       *bool
	FusedOptimizer                                *bool

	// SharedMemoryNeeded and SharedMemoryLimit are the bytes of on-chip memory
	// that a kernel asked for and may have, for a failure of that kind.
	SharedMemoryNeeded, SharedMemoryLimit units.Bytes

	// Saves holds savings that the caller computed from a full workload, as
	// plan, run and report can. They take the place of what a remedy would
	// read off the message.
	Saves map[Code]units.Estimate
	// Fits says, where the caller predicted the whole run with a change, whether
	// it fits the card then.
	Fits map[Code]bool
	// SplitBy is the division of the micro-batch that Saves and Fits were computed
	// for, 0 where nobody predicted it.
	SplitBy int
	// Need is what the run would take of a card at its peak, as predicted; 0 unknown.
	Need units.Bytes
	// Activations are those of the peak, as predicted; zero unknown.
	Activations units.Estimate
}

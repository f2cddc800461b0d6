package plan

import (
	"fmt"
	"math"

	"unoom/internal/memory"
	"unoom/internal/speed"
	"unoom/internal/units"
	"unoom/internal/workload"
)

// Allow says which changes of what is trained a caller permits. Without any, a
// plan computes what the workload does.
type Allow struct {
	Precision bool // number formats
	PEFT      bool // adapters instead of all weights
	Optimizer bool // another state or rule
	Sequence  bool // shorter sequences
}

// Hardware is one kind of accelerator and how many of it there are.
type Hardware struct {
	Name     string
	Device   speed.Device
	Capacity units.Bytes // what the driver reports as the total
	Outside  units.Bytes // of the CUDA context and libraries
	Count    int
	// Pairs says that the links join two accelerators only.
	Pairs bool
	// Host is the memory of the host for each accelerator, 0: not known, and not
	// a limit. HostAssumed says that nobody stated it; see AssumeHost.
	Host        units.Bytes
	HostAssumed bool
	Price       Price
	// Machine is what a cloud calls the machine, PerMachine how many of the
	// accelerators it has; "" and 0 where the accelerators are alone.
	Machine    string
	PerMachine int
}

// A Price is the range of what one accelerator costs to rent for an hour, in US
// dollars; zero: not known.
type Price struct {
	Low, High    float64
	Source, Date string
}

// Mid is the middle of the range, in the proportion of its ends.
func (p Price) Mid() float64 { return math.Sqrt(p.Low * p.High) }

// A Judge says what a workload needs of one card. It returns an error for what
// it cannot play.
type Judge func(*workload.Workload) (*memory.Estimate, error)

// A Request is what is asked of a plan.
type Request struct {
	// Workload is the present setting, the one the user has.
	Workload *workload.Workload
	// Batch is the effective batch in samples, 0: the workload's.
	Batch    int
	Hardware Hardware
	Allow    Allow
	Headroom float64 // share of the capacity to leave free
	// Targets are the stacks that may run the plan; none: all that can run what
	// the workload uses.
	Targets []Target
	// NoOffload leaves host memory alone.
	NoOffload bool
	// Most is how many plans are listed, 0: 5.
	Most  int
	Judge Judge
	// Quick says what a workload allocates at its peak, in well under a
	// millisecond; nil: Judge is asked, which takes longer and is asked less often.
	Quick func(*workload.Workload) (memory.Peak, error)
}

// A RequestError says what of a request contradicts itself. Code names a
// message of the room "plan".
type RequestError struct {
	Code string
	Args []any
}

func (e *RequestError) Error() string { return fmt.Sprintf("%s %v", e.Code, e.Args) }

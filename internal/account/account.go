// Package account says where every byte of a card is at one moment. An account
// is balanced: its parts sum to the capacity, and what nothing explains is a
// part of its own, named unknown, never left out.
package account

import (
	"unoom/internal/units"
)

// A Kind is what a part of the card is taken by. The words are PyTorch's.
type Kind string

// The kinds, in the order in which an account lists them.
const (
	OtherProcesses Kind = "other_processes"  // memory of other processes on the card
	Outside        Kind = "outside"          // this process, outside the caching allocator: context, NCCL, libraries
	OutsideOrOther Kind = "outside_or_other" // the message does not tell the two above apart
	ThisProcess    Kind = "this_process"     // this process, not broken down
	Weights        Kind = "weights"
	Gradients      Kind = "gradients"
	OptimizerState Kind = "optimizer_state"
	Activations    Kind = "activations"
	Temporaries    Kind = "temporaries"
	Allocated      Kind = "allocated"     // allocated by this process, not broken down
	PrivatePools   Kind = "private_pools" // cached blocks of CUDA graph pools
	Cached         Kind = "cached"        // reserved but unallocated
	Free           Kind = "free"          // cudaMemGetInfo
	Unknown        Kind = "unknown"       // capacity minus all of the above
)

// A Part is one share of the card.
type Part struct {
	Kind  Kind        `json:"kind"`
	Bytes units.Bytes `json:"bytes"`
	// PID is the process that holds the part, 0 where it is not known.
	PID int `json:"pid,omitempty"`
}

// An Account is the state of one card. The parts sum to Capacity.
type Account struct {
	Device   int         `json:"device"`
	Capacity units.Bytes `json:"capacity_bytes"`
	// Precision is how far a part may be off because the source rounds its
	// figures, as PyTorch's message does; 0 for exact counts.
	Precision units.Bytes `json:"precision_bytes"`
	Parts     []Part      `json:"parts"`
}

// Balance returns an account of the parts, dropping empty ones and adding what
// is missing as Unknown. Where the parts exceed the capacity by no more than
// precision, rounding is to blame and the largest part is shortened by the
// difference; a larger excess is left as a negative Unknown for the caller to
// report, since it means that the figures contradict each other.
func Balance(device int, capacity, precision units.Bytes, parts []Part) Account {
	a := Account{Device: device, Capacity: capacity, Precision: precision}
	rest, largest := capacity, -1
	for _, p := range parts {
		if p.Bytes == 0 {
			continue
		}
		a.Parts = append(a.Parts, p)
		rest -= p.Bytes
		if largest < 0 || p.Bytes > a.Parts[largest].Bytes {
			largest = len(a.Parts) - 1
		}
	}
	switch {
	case rest == 0:
	case rest < 0 && -rest <= precision && largest >= 0:
		a.Parts[largest].Bytes += rest
	default:
		a.Parts = append(a.Parts, Part{Kind: Unknown, Bytes: rest})
	}
	return a
}

// Of returns the bytes of a kind, summed over its parts.
func (a Account) Of(k Kind) units.Bytes {
	var sum units.Bytes
	for _, p := range a.Parts {
		if p.Kind == k {
			sum += p.Bytes
		}
	}
	return sum
}

// Share returns the part of the capacity that a kind takes, 0 to 1.
func (a Account) Share(k Kind) float64 {
	if a.Capacity <= 0 {
		return 0
	}
	return float64(a.Of(k)) / float64(a.Capacity)
}

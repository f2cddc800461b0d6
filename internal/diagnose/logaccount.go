package diagnose

import (
	"unoom/internal/account"
	"unoom/internal/oomlog"
	"unoom/internal/units"
)

// logAccount balances the figures of a message. It returns nil where the
// message does not state the capacity or nothing that is in it.
func logAccount(f *oomlog.Figures) *account.Account {
	if !f.Capacity.Known && f.Allowed.Known && f.Allocated.Known && f.Other.Known {
		return appleAccount(f)
	}
	if !f.Capacity.Known || !f.Free.Known && !f.Allocated.Known && !f.ThisProcess.Known {
		return nil
	}
	within := f.Capacity.Within + f.Free.Within
	var parts []account.Part
	add := func(kind account.Kind, b units.Bytes, pid int) {
		parts = append(parts, account.Part{Kind: kind, Bytes: b, PID: pid})
	}
	others := otherProcesses(f)
	for _, p := range others {
		add(account.OtherProcesses, p.Memory.Bytes, p.PID)
		within += p.Memory.Within
	}
	reserved := f.Reserved
	if !reserved.Known {
		reserved = f.Allocated
	}
	this := thisProcess(f)
	outside := units.Bytes(0)
	if this.Known && reserved.Known {
		// The process's figure and PyTorch's are taken at different moments and
		// rounded apart, so a small negative difference is none.
		outside = max(this.Bytes-reserved.Bytes, 0)
		add(account.Outside, outside, 0)
		within += this.Within
	}
	if f.Allocated.Known {
		allocated := f.Allocated.Bytes
		if f.Private.Known && f.Private.Bytes <= allocated {
			add(account.PrivatePools, f.Private.Bytes, 0)
			allocated -= f.Private.Bytes
		}
		add(account.Allocated, allocated, 0)
		within += f.Allocated.Within
	} else if this.Known {
		add(account.ThisProcess, this.Bytes, 0)
	}
	if f.Cached.Known {
		add(account.Cached, f.Cached.Bytes, 0)
		within += f.Cached.Within
	}
	if f.Free.Known {
		add(account.Free, f.Free.Bytes, 0)
	}
	rest := f.Capacity.Bytes
	for _, p := range parts {
		rest -= p.Bytes
	}
	// What neither PyTorch nor the free figure explains. Without process lines
	// it is this process's context and libraries, or somebody else.
	if rest > within && f.Allocated.Known && f.Free.Known {
		switch {
		case this.Known:
			add(account.OtherProcesses, rest, 0)
		case len(others) > 0:
			add(account.Outside, rest, 0)
		default:
			add(account.OutsideOrOther, rest, 0)
		}
	}
	// The figures are rounded apart, so the sum may miss by their precision. The
	// difference goes to the one part that is itself a difference; what the
	// message prints stays as it is printed.
	if rest != 0 && max(rest, -rest) <= within {
		for i := range parts {
			if p := &parts[i]; p.Kind == account.Outside && this.Known && p.Bytes+rest >= 0 {
				p.Bytes += rest
				break
			}
		}
	}
	a := account.Balance(max(f.Device, 0), f.Capacity.Bytes, within, parts)
	return &a
}

// appleAccount balances the message of Apple's GPU: what may be taken is the
// whole, and the "other allocations" are this process's own beside PyTorch's.
// Source: pytorch aten/src/ATen/mps/MPSAllocator.mm.
func appleAccount(f *oomlog.Figures) *account.Account {
	within := f.Allowed.Within + f.Allocated.Within + f.Other.Within
	a := account.Balance(0, f.Allowed.Bytes, within, []account.Part{
		{Kind: account.Outside, Bytes: f.Other.Bytes}, {Kind: account.Allocated, Bytes: f.Allocated.Bytes},
		{Kind: account.Free, Bytes: max(f.Allowed.Bytes-f.Allocated.Bytes-f.Other.Bytes, 0)},
	})
	return &a
}

// thisProcess returns the memory of the failing process. In a container its own
// line shows up as a foreign one; a single foreign process that holds what
// PyTorch reserved, and not much more, is the job itself.
func thisProcess(f *oomlog.Figures) oomlog.Figure {
	if f.ThisProcess.Known {
		return f.ThisProcess
	}
	if i := selfAsForeign(f); i >= 0 {
		return f.Processes[i].Memory
	}
	return oomlog.Figure{}
}

// maxContext is the most that a process holds outside PyTorch in ordinary runs:
// context, cuBLAS, NCCL and their kernels. Observed 0.3-4.5 GiB in the figures
// of public messages; used only to tell one's own process from another's.
const maxContext = 6 * units.GiB

// leastContext is less than any CUDA context takes of a card.
const leastContext = 100 * units.MiB

func selfAsForeign(f *oomlog.Figures) int {
	if f.ThisProcess.Known || len(f.Processes) == 0 {
		return -1
	}
	if !f.Reserved.Known { // the message is cut before what PyTorch holds
		only := f.Processes[0].Memory
		if len(f.Processes) == 1 && only.Known && f.Capacity.Known && f.Free.Known && f.Capacity.Bytes-f.Free.Bytes-only.Bytes < leastContext {
			return 0 // beside it there is no room for the context of this process
		}
		return -1
	}
	for i, p := range f.Processes {
		over := p.Memory.Bytes - f.Reserved.Bytes
		if p.Memory.Known && f.Reserved.Bytes >= 256*units.MiB && over >= -p.Memory.Within-f.Reserved.Within && over <= maxContext {
			return i
		}
	}
	return -1
}

// otherProcesses returns the processes of the message that are not this one.
func otherProcesses(f *oomlog.Figures) []oomlog.Process {
	self := selfAsForeign(f)
	var list []oomlog.Process
	for i, p := range f.Processes {
		if i != self && p.Memory.Known {
			list = append(list, p)
		}
	}
	return list
}

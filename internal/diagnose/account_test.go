package diagnose

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"unoom/internal/account"
	"unoom/internal/oomlog"
	"unoom/internal/remedy"
	"unoom/internal/units"
)

// A card at random, written down as each era of PyTorch does.
type card struct {
	capacity, free, allocated, cached, outside, other, tried units.Bytes
}

func drawCard(t *rapid.T) card {
	c := card{capacity: units.Bytes(rapid.Int64Range(int64(2*units.GiB), int64(200*units.GiB)).Draw(t, "capacity"))}
	rest := c.capacity
	part := func(name string) units.Bytes {
		b := units.Bytes(rapid.Int64Range(0, int64(rest)).Draw(t, name))
		rest -= b
		return b
	}
	c.other, c.outside, c.cached, c.allocated = part("other")/2, part("outside")/4, part("cached")/2, part("allocated")
	c.free = c.capacity - c.other - c.outside - c.cached - c.allocated
	c.tried = units.Bytes(rapid.Int64Range(512, int64(64*units.GiB)).Draw(t, "tried"))
	return c
}

func (c card) newForm() string {
	other := ""
	if c.other > 0 {
		other = fmt.Sprintf("Process 4711 has %s memory in use. ", c.other)
	}
	return fmt.Sprintf("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate %s. GPU 3 has a total capacity of %s of which %s is free. %sIncluding non-PyTorch memory, this process has %s memory in use. Of the allocated memory %s is allocated by PyTorch, and %s is reserved by PyTorch but unallocated.",
		c.tried, c.capacity, c.free, other, c.outside+c.cached+c.allocated, c.allocated, c.cached)
}

func (c card) oldForm() string {
	return fmt.Sprintf("RuntimeError: CUDA out of memory. Tried to allocate %s (GPU 3; %s total capacity; %s already allocated; %s free; %s reserved in total by PyTorch)",
		c.tried, c.capacity, c.allocated, c.free, c.allocated+c.cached)
}

func (c card) oldestForm() string {
	return fmt.Sprintf("RuntimeError: CUDA out of memory. Tried to allocate %s (GPU 3; %s total capacity; %s already allocated; %s free; %s cached)",
		c.tried, c.capacity, c.allocated, c.free, c.cached)
}

// The account of every form sums to the capacity, has no negative part, and is
// right up to the rounding of the message.
func TestTheAccountSums(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawCard(t)
		for form, text := range map[string]string{"new": c.newForm(), "old": c.oldForm(), "oldest": c.oldestForm()} {
			d := Log(oomlog.ScanString("log", text), Given{})
			if d.Account == nil {
				t.Fatalf("%s: no account of %q", form, text)
			}
			a := *d.Account
			var sum units.Bytes
			for _, p := range a.Parts {
				sum += p.Bytes
				if p.Bytes < 0 {
					t.Fatalf("%s: negative part %+v of %q", form, p, text)
				}
			}
			if sum != a.Capacity {
				t.Fatalf("%s: parts sum to %d of %d: %+v", form, sum, a.Capacity, a.Parts)
			}
			near := func(name string, got, want units.Bytes) {
				if diff := got - want; max(diff, -diff) > a.Precision+5*units.MiB {
					t.Fatalf("%s: %s = %s, want %s within %s of %q: %+v", form, name, got, want, a.Precision, text, a.Parts)
				}
			}
			near("capacity", a.Capacity, c.capacity)
			near("allocated", a.Of(account.Allocated), c.allocated)
			near("cached", a.Of(account.Cached), c.cached)
			near("free", a.Of(account.Free), c.free)
			if form == "new" {
				near("others", a.Of(account.OtherProcesses), c.other)
				near("outside", a.Of(account.Outside), c.outside)
			} else {
				near("outside or other", a.Of(account.OutsideOrOther)+a.Of(account.Unknown), c.outside+c.other)
			}
			if d.Slack == nil {
				t.Fatalf("%s: no slack", form)
			}
			near("slack", *d.Slack, c.free+c.cached-c.tried)
		}
	})
}

func TestAccountsOfSpecialMessages(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       map[account.Kind]units.Bytes
	}{
		{"WSL's figure is no figure",
			"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 16.00 GiB of which 1.00 GiB is free. Including non-PyTorch memory, this process has 17179869184.00 GiB memory in use. Of the allocated memory 12.00 GiB is allocated by PyTorch, and 2.00 GiB is reserved by PyTorch but unallocated.",
			map[account.Kind]units.Bytes{account.Allocated: 12 * units.GiB, account.Cached: 2 * units.GiB, account.Free: units.GiB, account.OutsideOrOther: units.GiB}},
		{"in a container its own process looks foreign",
			"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 16.00 GiB of which 1.00 GiB is free. Process 4711 has 15.00 GiB memory in use. Of the allocated memory 12.00 GiB is allocated by PyTorch, and 2.00 GiB is reserved by PyTorch but unallocated.",
			map[account.Kind]units.Bytes{account.Allocated: 12 * units.GiB, account.Cached: 2 * units.GiB, account.Free: units.GiB, account.Outside: units.GiB}},
		{"private pools are part of what is allocated",
			"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 16.00 GiB of which 1.00 GiB is free. Including non-PyTorch memory, this process has 15.00 GiB memory in use. Of the allocated memory 12.00 GiB is allocated by PyTorch, with 3.00 GiB allocated in private pools (e.g., CUDA Graphs), and 2.00 GiB is reserved by PyTorch but unallocated.",
			map[account.Kind]units.Bytes{account.Allocated: 9 * units.GiB, account.PrivatePools: 3 * units.GiB, account.Cached: 2 * units.GiB, account.Free: units.GiB, account.Outside: units.GiB}},
		{"cudaMallocAsync",
			"torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 20.00 GiB\nRequested               : 1.25 GiB\nDevice limit            : 24.00 GiB\nFree (according to CUDA): 1.00 GiB\nPyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 GiB\n",
			map[account.Kind]units.Bytes{account.Allocated: 20 * units.GiB, account.Free: units.GiB, account.OutsideOrOther: 3 * units.GiB}},
		{"only this process is known",
			"Tried to allocate 4.00 GiB. GPU 2 has a total capacity of 22.00 GiB of which 1.00 GiB is free. Including non-PyTorch memory, this process has 20.00 GiB memory in use.",
			map[account.Kind]units.Bytes{account.ThisProcess: 20 * units.GiB, account.Free: units.GiB, account.Unknown: units.GiB}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := Log(oomlog.ScanString("log", c.text), Given{})
			if d.Account == nil {
				t.Fatal("no account")
			}
			for _, p := range d.Account.Parts {
				if got, want := d.Account.Of(p.Kind), c.want[p.Kind]; got != want {
					t.Errorf("%s = %s, want %s", p.Kind, got, want)
				}
			}
			if len(d.Account.Parts) != len(c.want) {
				t.Errorf("parts %+v", d.Account.Parts)
			}
		})
	}
}

// Apple's message has a limit in place of a capacity, and all of it is this
// process's own.
func TestTheAccountOfAnAppleGPU(t *testing.T) {
	d := diagnosed("RuntimeError: MPS backend out of memory (MPS allocated: 20.00 GiB, other allocations: 3.00 GiB, max allowed: 24.00 GiB). Tried to allocate 2.00 GiB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system failure).\n")
	a := d.Account
	if a == nil || a.Capacity != 24*units.GiB || a.Of(account.Allocated) != 20*units.GiB || a.Of(account.Outside) != 3*units.GiB || a.Of(account.Free) != units.GiB {
		t.Fatalf("account %+v", a)
	}
	var codes []remedy.Code
	for _, r := range remedy.Advise(d.Situation) {
		codes = append(codes, r.Code)
	}
	if !slices.Contains(codes, "allocator.mps_limit") || !slices.Contains(codes, "accumulate.split") || slices.Contains(codes, "allocator.raise_cap") || slices.Contains(codes, "hardware.unified_memory") {
		t.Errorf("remedies %v", codes)
	}
}

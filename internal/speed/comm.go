package speed

import "math"

// A group is a set of ranks that communicate: size ranks, each stride apart in
// the order of the ranks, which fill one node after the other.
type group struct {
	size, stride int
}

// rate is the bytes per microsecond at which a ring over the group moves data
// through each rank, and latency the time of one step of it.
func (m *machine) rate(g group) (rate, latency float64) {
	d := m.d
	node := max(d.PerNode, 1)
	inside := d.Link * m.c.Link
	if d.Link == 0 {
		inside = d.PCIe * m.c.PCIe
	}
	rate, latency = inside*1e3, m.c.HopInside
	if g.size*g.stride > node {
		// The ring crosses nodes: every rank of the group in a node has its own
		// adapter, and the ring is split over them.
		nic := d.NIC
		if nic == 0 {
			nic = 1.25 // 10 Gb/s Ethernet, what a machine without a fabric has
		}
		here := max(1, node/g.stride)
		across := float64(here) * nic * m.c.NIC * 1e3
		rate, latency = min(rate, across), m.c.HopAcross
	}
	return rate, latency
}

// gather is the time of an all-gather or a reduce-scatter of bytes in total.
func (m *machine) gather(g group, bytes float64) float64 {
	if g.size <= 1 || bytes <= 0 {
		return 0
	}
	rate, hop := m.rate(g)
	n := float64(g.size)
	return (n-1)/n*bytes/rate + hop*(1+math.Log2(n))
}

// reduce is the time of an all-reduce.
func (m *machine) reduce(g group, bytes float64) float64 { return 2 * m.gather(g, bytes) }

// exchange is the time of an all-to-all in which each rank sends the given
// bytes of each token to copies ranks of its choice. Unlike a ring it sends most
// of its data across nodes through its own adapter; a token that goes to several
// ranks of one node crosses to it once.
func (m *machine) exchange(g group, token, copies float64) float64 {
	bytes := token * copies
	if g.size <= 1 || bytes <= 0 {
		return 0
	}
	d := m.d
	node := max(1, max(d.PerNode, 1)/g.stride)
	n := float64(g.size)
	inside, hop := m.rate(group{min(g.size, node), g.stride})
	near := min(n, float64(node))
	t := bytes * (near - 1) / n / inside
	if g.size > node {
		nic := max(d.NIC, 1.25) * m.c.NIC * 1e3
		nodes := math.Ceil(n / float64(node))
		distinct := nodes * (1 - math.Pow(1-1/nodes, copies))
		t = max(t, token*distinct*(nodes-1)/nodes/nic)
		hop = m.c.HopAcross
	}
	return t + hop*(1+math.Log2(n))
}

// exposed is the part of a transfer that a computation of a given length does
// not hide. What overlaps is not free: it takes memory bandwidth and
// multiprocessors from the computation.
func (m *machine) exposed(transfer, cover float64) float64 {
	hidden := min(transfer, cover)
	return transfer - hidden + m.c.Contention*hidden
}

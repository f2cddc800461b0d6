package alloc

// firstAddress is where the segments of a simulated card begin; reservations
// of expandable segments begin far above it.
const (
	firstAddress     = 0x7f00_0000_0000
	firstReservation = 0x1_0000_0000_0000
	// reservationWithoutTotal is the address space of an expandable segment when
	// nothing says how large the card is.
	reservationWithoutTotal = 1 << 44
)

// card is a device of so many bytes, which cudaMalloc hands out in whole
// segments at ascending addresses.
//
// Known gap: the driver's own fragmentation. A card says no only when its free
// bytes do not suffice.
type card struct {
	capacity, total int64 // 0: without bound
	taken           int64
	next            uint64
	nextReservation uint64
}

func (c *card) Reset() {
	c.taken, c.next, c.nextReservation = 0, firstAddress, firstReservation
}

func (c *card) take(size int64) bool {
	if c.capacity > 0 && size > c.capacity-c.taken {
		return false
	}
	c.taken += size
	return true
}

func (c *card) Malloc(size int64) (uint64, bool) {
	if !c.take(size) {
		return 0, false
	}
	addr := c.next
	c.next += uint64(size)
	return addr, true
}

func (c *card) Free(_ uint64, size int64) { c.taken -= size }

func (c *card) Reserve(page int64) (uint64, int64) {
	size := int64(reservationWithoutTotal)
	if c.total > 0 {
		size = c.total + c.total/8
	}
	size = (size + page - 1) / page * page
	addr := c.nextReservation
	c.nextReservation += uint64(size+page) &^ (smallBuffer - 1)
	return addr, size
}

func (c *card) Map(_ uint64, size int64) bool { return c.take(size) }

func (c *card) Unmap(_ uint64, size int64) { c.taken -= size }

func (c *card) Settle(a *Allocator) { a.Settle() }

func (c *card) FreeBytes() int64 {
	if c.capacity == 0 {
		return -1
	}
	return c.capacity - c.taken
}

// adopt takes over a segment that was given elsewhere.
func (c *card) adopt(s *SegmentState) {
	for i := range s.Blocks {
		if s.Blocks[i].State != Unmapped {
			c.taken += s.Blocks[i].Size
		}
	}
	end := (s.Addr + uint64(s.Size()) + smallBuffer - 1) &^ (smallBuffer - 1)
	c.next, c.nextReservation = max(c.next, end), max(c.nextReservation, end+1<<44)
}

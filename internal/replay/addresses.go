package replay

// addresses is a map from the address of a live block to a number. It is open
// addressing with linear probing; a deletion shifts back what follows, so that
// a long trace leaves no tombstones.
type addresses struct {
	keys   []uint64 // 0 is free; no block lies at address 0
	values []int32
	n      int
}

func newAddresses(room int) *addresses {
	size := 64
	for size < 2*room {
		size *= 2
	}
	return &addresses{keys: make([]uint64, size), values: make([]int32, size)}
}

// slot is where the search for an address begins. Addresses are multiples of
// 512; the multiplier is that of Fibonacci hashing.
func (m *addresses) slot(addr uint64) int {
	return int(addr*0x9e3779b97f4a7c15>>32) & (len(m.keys) - 1)
}

func (m *addresses) find(addr uint64) (int, bool) {
	i := m.slot(addr)
	for m.keys[i] != 0 {
		if m.keys[i] == addr {
			return i, true
		}
		i = (i + 1) & (len(m.keys) - 1)
	}
	return i, false
}

func (m *addresses) get(addr uint64) (int32, bool) {
	i, ok := m.find(addr)
	if !ok {
		return 0, false
	}
	return m.values[i], true
}

// put stores a value and reports whether the address was there before.
func (m *addresses) put(addr uint64, v int32) bool {
	i, ok := m.find(addr)
	m.keys[i], m.values[i] = addr, v
	if ok {
		return true
	}
	if m.n++; 2*m.n > len(m.keys) {
		old := *m
		*m = addresses{keys: make([]uint64, 2*len(old.keys)), values: make([]int32, 2*len(old.keys))}
		for j, key := range old.keys {
			if key != 0 {
				m.put(key, old.values[j])
			}
		}
	}
	return false
}

// take removes an address and returns its value.
func (m *addresses) take(addr uint64) (int32, bool) {
	i, ok := m.find(addr)
	if !ok {
		return 0, false
	}
	v := m.values[i]
	m.n--
	mask := len(m.keys) - 1
	for j := (i + 1) & mask; m.keys[j] != 0; j = (j + 1) & mask {
		if home := m.slot(m.keys[j]); (j-home)&mask >= (j-i)&mask {
			m.keys[i], m.values[i] = m.keys[j], m.values[j]
			i = j
		}
	}
	m.keys[i] = 0
	return v, true
}

package account

import (
	"testing"

	"pgregory.net/rapid"

	"unoom/internal/units"
)

func TestPartsSumToCapacity(t *testing.T) {
	kinds := []Kind{OtherProcesses, Outside, Allocated, Cached, Free}
	rapid.Check(t, func(t *rapid.T) {
		capacity := units.Bytes(rapid.Int64Range(1, 1<<40).Draw(t, "capacity"))
		precision := units.Bytes(rapid.Int64Range(0, 1<<26).Draw(t, "precision"))
		var parts []Part
		for _, k := range kinds {
			parts = append(parts, Part{Kind: k, Bytes: units.Bytes(rapid.Int64Range(0, 1<<38).Draw(t, string(k)))})
		}
		a := Balance(0, capacity, precision, parts)
		var sum units.Bytes
		for _, p := range a.Parts {
			if p.Bytes == 0 {
				t.Fatalf("empty part %s", p.Kind)
			}
			sum += p.Bytes
		}
		if sum != capacity {
			t.Fatalf("parts sum to %d, capacity is %d", sum, capacity)
		}
	})
}

func TestRoundingIsTakenFromTheLargestPart(t *testing.T) {
	a := Balance(0, 100, 5, []Part{{Kind: Allocated, Bytes: 90}, {Kind: Free, Bytes: 13}})
	if a.Of(Allocated) != 87 || a.Of(Free) != 13 || a.Of(Unknown) != 0 {
		t.Errorf("got %+v", a.Parts)
	}
	if a = Balance(0, 100, 2, []Part{{Kind: Allocated, Bytes: 110}}); a.Of(Unknown) != -10 {
		t.Errorf("a contradiction was hidden: %+v", a.Parts)
	}
}

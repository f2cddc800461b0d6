package alloc

import "testing"

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
)

func TestRound(t *testing.T) {
	conf := func(text string, v Version) Settings {
		s, err := ParseConf(text, v, Defaults())
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	plain := Defaults().Normal()
	four := conf("roundup_power2_divisions:4", Latest())
	list := conf("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", Version{2, 11})
	for _, c := range []struct {
		name string
		s    Settings
		n    int64
		want int64
	}{
		{"the least", plain, 1, 512},
		{"a multiple", plain, 1024, 1024},
		{"the next multiple", plain, 1025, 1536},
		{"one byte above 1 MiB", plain, mib + 1, mib + 512},
		{"divisions, small sizes as without", four, 2048, 2048},
		{"divisions: 1200 in quarters of 1024", four, 1200, 1536}, // 1200 is not above 512 × 4
		{"divisions: 5000 in quarters of 4096", four, 5000, 5120},
		{"divisions: a power of two", four, 1 << 20, 1 << 20},
		{"divisions: 1100 MiB in quarters of 1 GiB", four, 1100 * mib, 1280 * mib},
		{"list: 1 division is none", list, 300*mib + 1, 300*mib + 512},
		{"list: halves of 512 MiB", list, 600 * mib, 768 * mib},
		{"list: quarters of 1 GiB", list, 1100 * mib, 1280 * mib},
		{"list: eighths beyond", list, 2100 * mib, 2304 * mib},
	} {
		if got := c.s.Round(c.n); got != c.want {
			t.Errorf("%s: %d is rounded to %d, want %d", c.name, c.n, got, c.want)
		}
	}
}

func TestSegmentSize(t *testing.T) {
	s := Defaults().Normal()
	for rounded, want := range map[int64]int64{
		512: 2 * mib, mib: 2 * mib, mib + 512: 20 * mib, 10*mib - 512: 20 * mib,
		10 * mib: 10 * mib, 10*mib + 512: 12 * mib, 300 * mib: 300 * mib,
	} {
		if got := s.SegmentSize(rounded); got != want {
			t.Errorf("%d needs a segment of %d, want %d", rounded, got, want)
		}
	}
	s.LargeSegmentSize = 64 * mib
	if got := s.SegmentSize(3 * mib); got != 64*mib {
		t.Errorf("large_segment_size_mb:64 makes segments of %d", got)
	}
}

// The entry ">" overwrote the last explicit one until torch 2.10.
func TestDivisionListByVersion(t *testing.T) {
	const conf = "roundup_power2_divisions:[256:1,512:2,>:8]"
	for v, want := range map[Version][3]uint64{{2, 10}: {1, 8, 8}, {2, 11}: {1, 2, 8}} {
		s, err := ParseConf(conf, v, Defaults())
		if err != nil {
			t.Fatal(err)
		}
		d := s.RoundupPower2Divisions
		if got := [3]uint64{d[8], d[9], d[10]}; got != want || d[0] != 1 || d[15] != 8 {
			t.Errorf("torch %s: %v", v, d)
		}
	}
}

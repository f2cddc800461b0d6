package workload

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReadLength(t *testing.T) {
	for _, tc := range []struct {
		text    string
		options map[string]string
		seq     int64
		target  int64
		others  []string
		refused bool
	}{
		{text: "4096", seq: 4096},
		{text: "128 src/64 tgt", seq: 128, target: 64},
		{text: "<=512 (Alpaca, padded to batch max)", seq: 512, others: []string{"128", "512"}},
		{text: "variable(<=8192)", seq: 2048, others: []string{"512", "8192"}},
		{text: "variable(<=4096)", options: map[string]string{"padding-free": ""}, seq: 704, others: []string{"176", "4096"}},
		{text: "<=64..128 (tweets)", seq: 128, others: []string{"64", "128"}},
		{text: "variable", seq: 2048, others: []string{"512", "4096"}},
		{text: "variable, long side<=1333 short side 800", refused: true},
		{text: "49x480x720 video", refused: true},
		{text: "unclear", refused: true},
	} {
		t.Run(tc.text, func(t *testing.T) {
			w := &Workload{MicroBatch: 4, Options: tc.options}
			err := w.readLength(tc.text)
			if tc.refused {
				if _, ok := errors.AsType[*Unanswerable](err); !ok {
					t.Fatalf("error %v, want an Unanswerable", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var others []string
			for _, a := range w.Assumptions {
				others = append(others, a.Others...)
			}
			if w.Seq != tc.seq || w.TargetSeq != tc.target {
				t.Errorf("length %d, target %d, want %d and %d", w.Seq, w.TargetSeq, tc.seq, tc.target)
			}
			if d := cmp.Diff(tc.others, others); d != "" {
				t.Errorf("supposed lengths (-want +got):\n%s", d)
			}
		})
	}
}

// What is supposed can be replaced: that is how an interval comes about.
func TestWith(t *testing.T) {
	w := &Workload{Seq: 2048, Adapter: Adapter{Rank: 8, Targets: []string{"q_proj"}}}
	longer, err := w.With("seq", "4096")
	if err != nil || longer.Seq != 4096 || w.Seq != 2048 {
		t.Errorf("seq %v, of the original %d, error %v", longer, w.Seq, err)
	}
	wide, err := w.With("lora", "64 gate_proj+up_proj")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(Adapter{Rank: 64, Targets: []string{"gate_proj", "up_proj"}}, wide.Adapter); d != "" {
		t.Error(d)
	}
	for _, bad := range [][2]string{{"seq", "0"}, {"seq", "long"}, {"colour", "1"}} {
		if _, err := w.With(bad[0], bad[1]); err == nil {
			t.Errorf("%s=%s is accepted", bad[0], bad[1])
		}
	}
}

package snapshot

import (
	"bytes"
	"testing"
)

func BenchmarkRead(b *testing.B) {
	for _, name := range []string{"20_torch210_training_22k_events.pickle", "13_from_empty_23k_events.pickle", "05_two_streams_segment_churn.pickle"} {
		b.Run(name, func(b *testing.B) {
			data := corpusFile(b, name)
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Read(bytes.NewReader(data), int64(len(data))); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

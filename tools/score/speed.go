package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"unoom/internal/model"
	"unoom/internal/speed"
)

// scoreSpeed compares predicted with published throughput. The table is in the
// repository: it holds facts of public benchmarks with their sources.
func scoreSpeed(string, bool) error {
	var in []io.Reader
	for _, name := range []string{"throughput.csv", "models.csv", "gpus.csv", "images.csv", "gpus.csv"} {
		f, err := os.Open(filepath.Join("internal", "speed", "testdata", name))
		if err != nil {
			return err
		}
		defer f.Close()
		in = append(in, f)
	}
	rows, err := speed.ReadTable(in[0], in[1], in[2])
	if err != nil {
		return err
	}
	catalogue, err := model.Published()
	if err != nil {
		return err
	}
	images, err := speed.ReadImages(in[3], in[4], func(name string, size int) (*speed.Net, error) { return speed.Named(catalogue, name, size) })
	if err != nil {
		return err
	}
	print := func(what string, rows []speed.Row) {
		fmt.Printf("\nspeed: predicted against published throughput (internal/speed/testdata/%s)\n", what)
		fmt.Printf("  %-18s %5s %9s %22s %13s %8s %7s\n", "source", "rows", "Spearman", "Kendall, same model", "median error", "bias", "inside")
		for _, s := range speed.Score(rows, speed.Default()) {
			fmt.Printf("  %-18s %5d %9.3f %10.3f (%4d pairs) %11.1f %% %+6.1f %% %5.0f %%\n",
				s.Source, s.Rows, s.Spearman, s.Kendall, s.Pairs, 100*s.Median, 100*s.Bias, 100*s.Inside)
		}
	}
	print("throughput.csv", rows)
	print("images.csv", images)
	return nil
}

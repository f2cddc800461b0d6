// Command score measures unoom against public data with known answers. Each
// score has its own file; `make score` runs all of them.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	corpus := flag.String("corpus", "../shared/corpus", "folder of the public data")
	verbose := flag.Bool("v", false, "print every record")
	flag.Parse()
	if _, err := os.Stat(*corpus); err != nil {
		fmt.Printf("no scores: the corpus is not at %s (make score CORPUS=...)\n", *corpus)
		return
	}
	scores := []struct {
		name string
		run  func(folder string, verbose bool) error
	}{
		{"oom-reports", scoreExplain},
		{"speed", scoreSpeed},
	}
	for _, s := range scores {
		if err := s.run(filepath.Join(*corpus, s.name), *verbose); err != nil {
			fmt.Fprintf(os.Stderr, "score: %s: %v\n", s.name, err)
			os.Exit(1)
		}
	}
}

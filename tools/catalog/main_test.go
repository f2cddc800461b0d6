package main

import (
	"bytes"
	"os"
	"testing"
)

func TestEmbeddedJSONIsWhatTheYAMLSays(t *testing.T) {
	for _, g := range groups {
		want, err := g.build(os.DirFS("../../catalog"))
		if err != nil {
			t.Error(err)
			continue
		}
		got, err := os.ReadFile("../../catalog/" + g.folder + ".json")
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("catalog/%s.json is not what catalog/%s/*.yaml says (%v): run `go generate ./catalog`", g.folder, g.folder, err)
		}
	}
}

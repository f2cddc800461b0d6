// Command catalog writes the JSON that the program embeds from the reviewed YAML
// of the catalogue. Run it with `go generate ./catalog`.
package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/goccy/go-yaml"
)

// groups are the folders of the catalogue that become one JSON file each, and
// what an entry of them must have.
var groups = []group{
	{folder: "models", required: []string{"name", "params", "config"}, known: []string{"aliases", "params_from"}},
	{folder: "gpus", required: []string{"name", "aliases", "vendor", "arch", "nominal_gb", "memory_mib", "torch_mib", "bandwidth_gbs",
		"sms", "tflops", "link", "pcie_gbs", "per_node", "context_mib", "verified"},
		known: []string{"sm", "link_gbs", "usd_hour", "laptop", "note", "mig"}},
	{folder: "clouds", required: []string{"name", "cloud", "gpu", "gpus", "usd_hour", "region", "date", "source"}, known: []string{"ram_gib"}},
	{folder: "variants", required: []string{"name", "set", "source"}, known: []string{"frameworks", "flavour", "library", "from", "before", "stated", "attention", "families", "methods", "shardings", "kernels", "passage", "otherwise"}},
}

type group struct {
	folder   string
	required []string
	known    []string
}

func main() {
	if err := run("."); err != nil {
		fmt.Fprintln(os.Stderr, "catalog:", err)
		os.Exit(1)
	}
}

// run writes the JSON files into the folder of the catalogue, where go generate
// starts it.
func run(dir string) error {
	for _, g := range groups {
		data, err := g.build(os.DirFS(dir))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, g.folder+".json"), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// build returns the JSON of a group: one entry on each line, so that a change is
// seen in a diff.
func (g group) build(fsys fs.FS) ([]byte, error) {
	files, err := fs.Glob(fsys, g.folder+"/*.yaml")
	if err != nil {
		return nil, err
	}
	out := []byte("[")
	names := map[string]string{}
	for _, name := range files {
		text, err := fs.ReadFile(fsys, name)
		if err != nil {
			return nil, err
		}
		var entries []map[string]any
		if err := yaml.UnmarshalWithOptions(text, &entries, yaml.Strict()); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		for i, e := range entries {
			if err := g.check(e); err != nil {
				return nil, fmt.Errorf("%s: entry %d: %w", name, i+1, err)
			}
			id := fmt.Sprint(e["name"])
			if first, twice := names[id]; twice {
				return nil, fmt.Errorf("%s: %q is in %s too", name, id, first)
			}
			names[id] = name
			line, err := json.Marshal(e)
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", name, id, err)
			}
			if len(names) > 1 {
				out = append(out, ',')
			}
			out = append(append(out, '\n'), line...)
		}
	}
	return append(out, "\n]\n"...), nil
}

// check finds keys that are missing and keys that nobody reads.
func (g group) check(e map[string]any) error {
	known := map[string]bool{}
	for _, k := range g.required {
		known[k] = true
		if _, ok := e[k]; !ok {
			return fmt.Errorf("%s is missing", k)
		}
	}
	for _, k := range g.known {
		known[k] = true
	}
	for k := range e {
		if !known[k] {
			return fmt.Errorf("unknown key %q", k)
		}
	}
	return nil
}

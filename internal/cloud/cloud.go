// Package cloud lists machines with GPUs that can be rented by the hour, with
// the price that was read for each and the day it was read. The figures come
// from catalog/clouds.
package cloud

import (
	"encoding/json"
	"fmt"
	"slices"

	"unoom/catalog"
)

// A Machine is one kind of machine of one cloud.
type Machine struct {
	Name    string  `json:"name"`
	Cloud   string  `json:"cloud"`
	GPU     string  `json:"gpu"` // by its name in the catalogue of cards
	GPUs    int     `json:"gpus"`
	RAMGiB  float64 `json:"ram_gib,omitempty"` // of the host; 0: not stated
	USDHour float64 `json:"usd_hour"`          // on demand, the whole machine
	Region  string  `json:"region"`            // "any" where the price does not differ
	Date    string  `json:"date"`
	Source  string  `json:"source"`
}

// Published returns the machines that the program knows.
func Published() ([]Machine, error) {
	var m []Machine
	if err := json.Unmarshal([]byte(catalog.Clouds), &m); err != nil {
		return nil, fmt.Errorf("catalogue of clouds: %w", err)
	}
	return m, nil
}

// Names lists the clouds of a list of machines, sorted.
func Names(machines []Machine) []string {
	var out []string
	for i := range machines {
		out = append(out, machines[i].Cloud)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

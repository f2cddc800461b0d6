// Package smi asks nvidia-smi which GPUs this machine has. It says nothing where
// there is no driver; it never waits long for one that hangs.
package smi

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"unoom/internal/units"
)

// A Device is one GPU of this machine.
type Device struct {
	Index       int
	UUID, Name  string
	Total, Used units.Bytes // as the driver counts them
}

// patience is how long the driver may take to answer. It wakes sleeping cards,
// which takes seconds on machines with eight of them.
const patience = 10 * time.Second

// List returns the GPUs that CUDA_VISIBLE_DEVICES leaves; visible is its value, ""
// for all of them. No nvidia-smi is no GPU, and not an error.
func List(ctx context.Context, visible string) ([]Device, error) {
	if _, err := exec.LookPath("nvidia-smi"); err != nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, "nvidia-smi", "--query-gpu=index,uuid,name,memory.total,memory.used", "--format=csv,noheader,nounits").Output()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("nvidia-smi did not answer within %s", patience)
	}
	if err != nil {
		return nil, fmt.Errorf("nvidia-smi: %w", err)
	}
	return Parse(string(out), visible)
}

// Parse reads the answer of nvidia-smi.
func Parse(text, visible string) ([]Device, error) {
	r := csv.NewReader(strings.NewReader(text))
	r.TrimLeadingSpace, r.FieldsPerRecord = true, -1
	rows, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("nvidia-smi: %w", err)
	}
	var out []Device
	for _, row := range rows {
		if len(row) < 5 {
			continue // "No devices were found"
		}
		index, err1 := strconv.Atoi(strings.TrimSpace(row[0]))
		total, err2 := strconv.ParseInt(strings.TrimSpace(row[3]), 10, 64)
		used, err3 := strconv.ParseInt(strings.TrimSpace(row[4]), 10, 64)
		if errors.Join(err1, err2, err3) != nil || total <= 0 || total > 1<<32 || used < 0 {
			continue // [N/A]: memory that the card shares with the host
		}
		out = append(out, Device{index, strings.TrimSpace(row[1]), strings.TrimSpace(row[2]), units.Bytes(total) * units.MiB, units.Bytes(used) * units.MiB})
	}
	if visible == "" {
		return out, nil
	}
	names := strings.Split(visible, ",")
	return slices.DeleteFunc(out, func(d Device) bool {
		return !slices.ContainsFunc(names, func(n string) bool {
			n = strings.TrimSpace(n)
			return n == strconv.Itoa(d.Index) || strings.HasPrefix(n, "GPU-") && strings.HasPrefix(d.UUID, n)
		})
	}), nil
}

// Package smi asks nvidia-smi what this machine's GPUs are and who holds them. It
// is the only place that starts or reads nvidia-smi's own query output; it says
// nothing where there is no driver, and never waits long for one that hangs.
package smi

import (
	"bytes"
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

// A Holder is a process that holds memory of a card.
type Holder struct {
	UUID  string // of the card
	PID   int
	Bytes units.Bytes
}

// patience is how long the driver may take to answer. It wakes sleeping cards,
// which takes seconds on machines with eight of them.
const patience = 10 * time.Second

// List returns the GPUs that CUDA_VISIBLE_DEVICES leaves; visible is its value, ""
// for all of them. No nvidia-smi is no GPU, and not an error.
func List(ctx context.Context, visible string) ([]Device, error) {
	text, err := ask(ctx, patience, "--query-gpu=index,uuid,name,memory.total,memory.used")
	if errors.Is(err, exec.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parseDevices(text, visible)
}

// Holders returns the processes that hold memory of the cards, as far as the driver
// tells: in a container it may name none.
func Holders(ctx context.Context) ([]Holder, error) {
	text, err := ask(ctx, patience, "--query-compute-apps=gpu_uuid,pid,used_memory")
	if err != nil {
		return nil, err
	}
	return parseHolders(text)
}

// ask runs one query. A driver that hangs holds the process where no signal
// reaches it; then it is left behind and not waited for.
func ask(ctx context.Context, patience time.Duration, query string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "nvidia-smi", query, "--format=csv,noheader,nounits")
	cmd.Stdout, cmd.WaitDelay = &out, time.Second
	ended := make(chan error, 1)
	go func() { ended <- cmd.Run() }()
	select {
	case err := <-ended:
		if err != nil && ctx.Err() == nil {
			return "", fmt.Errorf("nvidia-smi: %w", err)
		}
		if err == nil {
			return out.String(), nil
		}
	case <-ctx.Done():
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return "", fmt.Errorf("nvidia-smi did not answer within %s", patience)
	}
	return "", ctx.Err()
}

// rows reads an answer: comma separated, a sentence such as "No devices were
// found" in place of what is not there.
func rows(text string, fields int) ([][]string, error) {
	r := csv.NewReader(strings.NewReader(text))
	r.TrimLeadingSpace, r.FieldsPerRecord, r.LazyQuotes = true, -1, true
	all, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("nvidia-smi: %w", err)
	}
	all = slices.DeleteFunc(all, func(row []string) bool { return len(row) < fields })
	for _, row := range all {
		for i := range row {
			row[i] = strings.TrimSpace(row[i])
		}
	}
	return all, nil
}

// mib reads a number of MiB. Words such as [N/A] and [Insufficient Permissions]
// stand where the driver does not tell.
func mib(text string) (units.Bytes, bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > 1<<32 {
		return 0, false
	}
	return units.Bytes(n) * units.MiB, true
}

func parseDevices(text, visible string) ([]Device, error) {
	list, err := rows(text, 5)
	if err != nil {
		return nil, err
	}
	var out []Device
	for _, row := range list {
		index, err := strconv.Atoi(row[0])
		total, ok1 := mib(row[3])
		used, ok2 := mib(row[4])
		if err != nil || !ok1 || !ok2 || total == 0 {
			continue // a card that shares its memory with the host
		}
		if d := (Device{index, row[1], row[2], total, used}); leaves(visible, d) {
			out = append(out, d)
		}
	}
	return out, nil
}

// leaves says whether CUDA_VISIBLE_DEVICES lets a program see a card.
func leaves(visible string, d Device) bool {
	return visible == "" || slices.ContainsFunc(strings.Split(visible, ","), func(n string) bool {
		n = strings.TrimSpace(n)
		return n == strconv.Itoa(d.Index) || strings.HasPrefix(n, "GPU-") && strings.HasPrefix(d.UUID, n)
	})
}

func parseHolders(text string) ([]Holder, error) {
	list, err := rows(text, 3)
	if err != nil {
		return nil, err
	}
	var out []Holder
	for _, row := range list {
		pid, err := strconv.Atoi(row[1])
		if held, ok := mib(row[2]); ok && err == nil {
			out = append(out, Holder{row[0], pid, held})
		}
	}
	return out, nil
}

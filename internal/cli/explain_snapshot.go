package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"unoom/internal/diagnose"
	"unoom/internal/oomlog"
	"unoom/internal/report"
	"unoom/internal/snapshot"
)

// namedSnapshot is a memory snapshot with the name it was given by.
type namedSnapshot struct {
	name string
	*snapshot.Snapshot
}

// scanSnapshot takes what looks like a memory snapshot. r begins with what was
// already read of it.
func (e *explain) scanSnapshot(in *inputs, name string, r io.Reader, size int64) error {
	if in.folder {
		return fmt.Errorf("%s: a memory snapshot; name it alone to have it explained", name)
	}
	s, err := snapshot.Read(r, size)
	if err != nil {
		return e.snapshotHint(fmt.Errorf("%s: %w", name, err))
	}
	in.snapshots = append(in.snapshots, namedSnapshot{name, s})
	return nil
}

// sizeOf returns how long a file is, -1 for what is none.
func sizeOf(r io.Reader) int64 {
	if f, ok := r.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			return info.Size()
		}
	}
	return -1
}

// explainSnapshots explains one snapshot, or what changed between two.
func (e *explain) explainSnapshots(in *inputs) error {
	switch {
	case len(in.logs) > 0:
		return withHint(errors.New("logs and memory snapshots are explained apart"), "unoom explain "+in.snapshots[0].name)
	case len(in.snapshots) > 2:
		return withHint(fmt.Errorf("%d memory snapshots are given", len(in.snapshots)), "give one to explain it, or two to see what changed between them")
	}
	var held []*diagnose.Held
	for _, s := range in.snapshots {
		h := diagnose.Snapshot(s.Snapshot, e.device, e.given)
		if h.Empty() {
			return e.nothingHeld(s, h)
		}
		held = append(held, h)
	}
	if len(held) == 2 {
		return e.explainChange(in, diagnose.Compare(held[0], held[1]))
	}
	return e.explainHeld(in.snapshots[0], held[0], in.warnings)
}

// nothingHeld says why there is nothing to explain.
func (e *explain) nothingHeld(s namedSnapshot, h *diagnose.Held) error {
	if len(h.Devices) == 0 {
		return withHint(fmt.Errorf("%s: the snapshot holds neither segments nor events", s.name), e.msgs.Text("snapshot.hint.recording"))
	}
	var known []int
	for _, d := range h.Devices {
		known = append(known, d.Device)
	}
	return withHint(fmt.Errorf("%s: device %d has nothing", s.name, e.device), fmt.Sprintf("--device: one of %v", known))
}

func (e *explain) explainHeld(s namedSnapshot, h *diagnose.Held, warnings []string) error {
	words := e.msgs
	if e.json {
		words = english()
	}
	view, err := report.Explain(&h.Diagnosis, h.Advise(), &oomlog.Result{}, words)
	if err != nil {
		return err
	}
	view.Warnings = slices.Concat(warnings, view.Warnings)
	w := heldWords{words, h}
	view.Measured = true
	view.Headline, view.Lead = w.headline(), w.lead(view.Lead)
	if view.Account != nil {
		view.Account.Title = w.accountTitle()
	}
	if e.json {
		data := explainData(&h.Diagnosis, view)
		data.Snapshot = heldJSON(s, h)
		return e.printJSON("unoom/explain/v1", heldWarnings(s, view), data)
	}
	e.printHeld(s, h, view, w)
	for _, warn := range heldWarnings(s, view) {
		fmt.Fprintf(e.Err, "unoom: %s: %s\n", e.msgs.Text("warning"), warn.Msg)
	}
	return nil
}

func heldWarnings(s namedSnapshot, view *report.Explanation) []warning {
	list := snapshotWarnings(s.Snapshot)
	for _, w := range view.Warnings {
		list = append(list, warning{Code: "input", Msg: w})
	}
	return list
}

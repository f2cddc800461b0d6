package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"unoom/internal/diagnose"
	"unoom/internal/lives"
	"unoom/internal/replay"
	"unoom/internal/report/export"
	"unoom/internal/report/html"
	"unoom/internal/snapshot"
)

// reportFlags are the flags of `unoom report`.
type reportFlags struct {
	out    string
	format string
	at     string
	device int
}

func (a *app) reportCommand() *cobra.Command {
	var f reportFlags
	c := &cobra.Command{
		Use:   "report SNAPSHOT",
		Short: "Show a memory snapshot as a page, or convert it for other tools",
		Long: "report writes what a PyTorch memory snapshot holds. As HTML it is one page that\n" +
			"opens offline: memory over time by what it is, the flame graph and the map of any\n" +
			"moment, who holds the memory, what grows. The other formats are for other tools:\n\n" +
			"  html        a browser\n" +
			"  pprof       go tool pprof FILE.pb.gz\n" +
			"  perfetto    https://ui.perfetto.dev (Chrome's trace events)\n" +
			"  speedscope  https://www.speedscope.app\n" +
			"  csv         one line for each event",
		Example: "  unoom report snapshot.pickle\n" +
			"  unoom report snapshot.pickle -o peak.pb.gz && go tool pprof -top peak.pb.gz\n" +
			"  unoom report snapshot.pickle --format csv -o - | head",
		Args: oneArgument("the snapshot to show, or - for stdin"),
		RunE: func(_ *cobra.Command, args []string) error { return a.report(args[0], &f) },
	}
	flags := c.Flags()
	flags.StringVarP(&f.out, "output", "o", "", "`FILE` to write, - for stdout (default: SNAPSHOT's name with .html)")
	flags.StringVar(&f.format, "format", "", "html, pprof, perfetto, speedscope or csv (default: by the name of FILE)")
	flags.StringVar(&f.at, "at", "", "the `MOMENT` shown: oom, peak, start, end, or an event's number\n(default: oom where a request failed, else peak)")
	flags.IntVar(&f.device, "device", -1, "only this `GPU` (default: all that have something)")
	return c
}

func (a *app) report(name string, f *reportFlags) error {
	format, out, err := f.target(name)
	if err != nil {
		return err
	}
	snap, err := a.readSnapshot(name)
	if err != nil {
		return err
	}
	shown, err := a.shownDevices(snap, f)
	if err != nil {
		return err
	}
	write := func(w io.Writer) error { return a.writeReport(w, format, name, snap, shown) }
	if out == "-" {
		return write(a.Out)
	}
	if err := writeAtomically(out, write); err != nil {
		return err
	}
	if a.json {
		return a.printJSON("unoom/report/v1", snapshotWarnings(snap), map[string]string{"file": out, "format": string(format)})
	}
	_, err = fmt.Fprintln(a.Out, a.msgs.Text("report.written", out))
	return err
}

// target decides on the format and the file.
func (f *reportFlags) target(name string) (export.Format, string, error) {
	const formats = "--format html, pprof, perfetto, speedscope or csv"
	out := f.out
	if f.format != "" {
		for _, known := range export.Formats() {
			if f.format == string(known) {
				return known, f.file(out, name, known), nil
			}
		}
		return "", "", withHint(fmt.Errorf("--format %q: not a format", f.format), formats)
	}
	switch out {
	case "":
		return export.HTML, f.file(out, name, export.HTML), nil
	case "-":
		return "", "", withHint(errors.New("the format does not show when writing to stdout"), formats)
	}
	format, ok := export.FormatOf(out)
	if !ok && strings.HasSuffix(strings.ToLower(out), ".json") {
		return "", "", withHint(fmt.Errorf("-o %s: two formats are JSON", out), "--format perfetto or --format speedscope")
	}
	if !ok {
		return "", "", withHint(fmt.Errorf("-o %s: the name does not tell the format", out), formats)
	}
	return format, out, nil
}

// file names the output after the input where no name is given.
func (f *reportFlags) file(out, name string, format export.Format) string {
	if out != "" {
		return out
	}
	base := filepath.Base(name)
	if name == "-" {
		base = "snapshot"
	}
	for _, ending := range []string{".gz", ".zip", ".pickle", ".pkl", ".json", ".html"} {
		base = strings.TrimSuffix(base, ending)
	}
	ending := map[export.Format]string{
		export.HTML: ".html", export.Pprof: ".pb.gz", export.Perfetto: ".perfetto.json",
		export.Speedscope: ".speedscope.json", export.CSV: ".csv",
	}[format]
	return base + ending
}

// shown is one device of a report.
type shown struct {
	*diagnose.Held
	// exact is a check that kept the sizes of blocks; nil if the trace is not
	// reproduced.
	exact  *replay.Result
	moment int32
}

// shownDevices looks at every device that has anything, with the moment that was
// asked for.
func (a *app) shownDevices(snap *snapshot.Snapshot, f *reportFlags) ([]shown, error) {
	var out []shown
	all := diagnose.Snapshot(snap, f.device, diagnose.Given{})
	for _, d := range all.Devices {
		if f.device >= 0 && d.Device != f.device {
			continue
		}
		h := all
		if d.Device != all.Device {
			h = diagnose.Snapshot(snap, d.Device, diagnose.Given{})
		}
		s := shown{Held: h}
		if c, r := h.Case, h.Check; r.Reproducible && r.Mismatches() == 0 && r.Skipped == 0 {
			c.KeepBytes = true
			s.exact = c.CheckAs(r.Torch, r.Tie)
		}
		var err error
		if s.moment, err = f.moment(h.History); err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	if len(out) == 0 {
		if f.device >= 0 {
			return nil, withHint(fmt.Errorf("--device %d: the snapshot has nothing of this GPU", f.device), "`unoom replay` lists the GPUs of a snapshot")
		}
		return nil, withHint(errors.New("the snapshot is empty: no segments and no events"),
			"record with torch.cuda.memory._record_memory_history() before the run")
	}
	return out, nil
}

// moment returns the event after which a device is shown.
func (f *reportFlags) moment(h *lives.History) (int32, error) {
	last := int32(len(h.Events)) - 1
	switch f.at {
	case "", "oom":
		if len(h.OOMs) > 0 {
			return h.OOMs[0], nil
		}
		return h.Peak.Event, nil
	case "peak":
		return h.Peak.Event, nil
	case "start":
		return lives.Before, nil
	case "end":
		return last, nil
	}
	n, err := strconv.ParseInt(f.at, 10, 32)
	if err != nil || n < 0 {
		return 0, withHint(fmt.Errorf("--at %q: not a moment", f.at), "--at peak, oom, start, end, or the number of an event")
	}
	return min(int32(n), last), nil
}

func (a *app) writeReport(w io.Writer, format export.Format, name string, snap *snapshot.Snapshot, devices []shown) error {
	if format == export.HTML {
		return a.writePage(w, name, snap, devices)
	}
	var views []export.View
	for i := range devices {
		d := &devices[i]
		views = append(views, export.View{History: d.History, Moment: d.moment, Bytes: d.exactBytes()})
	}
	switch format {
	case export.Pprof:
		return export.WritePprof(w, views)
	case export.Perfetto:
		return export.WritePerfetto(w, views)
	case export.Speedscope:
		return export.WriteSpeedscope(w, filepath.Base(name), views)
	default:
		return export.WriteCSV(w, views)
	}
}

// exactBytes returns the sizes of blocks as the replay found them, nil if it does
// not reproduce the trace.
func (d *shown) exactBytes() func(*lives.Tensor) int64 {
	r := d.exact
	if r == nil {
		return nil
	}
	return func(t *lives.Tensor) int64 {
		n := r.BlockBytes(int(t.Born))
		if t.Born == lives.Before {
			n = r.BlockBytes(int(t.Freed))
		}
		if n == 0 {
			return t.Bytes
		}
		return n
	}
}

func (a *app) writePage(w io.Writer, name string, snap *snapshot.Snapshot, devices []shown) error {
	var sources []html.Source
	first := &devices[0]
	for i := range devices {
		d := &devices[i]
		texts, err := d.texts()
		if err != nil {
			return err
		}
		sources = append(sources, html.Source{
			History: d.History, Case: d.Case, Bytes: d.exactBytes(), Trials: d.Trials, Moment: d.moment, Texts: texts,
		})
		switch one, other := len(d.History.OOMs) > 0, len(first.History.OOMs) > 0; {
		case one && !other, one == other && d.PeakAllocated > first.PeakAllocated:
			first = d
		}
	}
	return html.Write(w, html.Build(filepath.Base(name), a.msgs.Lang(), snap, first.Device, sources))
}

// writeAtomically writes a file beside its place and renames it, so that a failure
// leaves what was there.
func writeAtomically(name string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*")
	if err != nil {
		return withHint(fmt.Errorf("write %s: %w", name, err), "does the folder exist, and may you write there?")
	}
	defer os.Remove(f.Name())
	b := bufio.NewWriterSize(f, 1<<20)
	err = write(b)
	if err == nil {
		err = b.Flush()
	}
	if err == nil {
		err = f.Chmod(0o644)
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

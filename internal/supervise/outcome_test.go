package supervise

import (
	"strings"
	"syscall"
	"testing"

	"unoom/internal/units"
)

func TestJudge(t *testing.T) {
	one := 1
	hello := Event{Kind: "hello", PID: 10, Rank: &one}
	raised := &Process{Hello: hello, OOM: &Event{Kind: "oom_raised", Text: "CUDA out of memory.", Phase: "backward", Time: 5},
		Observed: []Event{{Tried: units.GiB, Total: 24 * units.GiB, Free: units.GiB / 2, Allocated: 23 * units.GiB, Reserved: 23*units.GiB + units.MiB}}}
	later := &Process{Hello: hello, OOM: &Event{Kind: "oom_raised", Text: "later", Time: 9}}
	survived := &Process{Hello: hello, Observed: raised.Observed, Exited: true}
	swallowed := &Process{Hello: hello, Observed: raised.Observed}
	bug := &Process{Hello: hello, Exception: &Event{Type: "builtins.ValueError", Text: "shapes", Phase: "forward"}}
	log := func(o Outcome, certain bool, f Figures) *LogFinding {
		return &LogFinding{Outcome: o, Certain: certain, Evidence: "the line", Figures: f, Rank: -1}
	}
	full := Figures{Tried: units.GiB, Capacity: 24 * units.GiB, Free: units.MiB, Allocated: 23 * units.GiB, Reserved: 23 * units.GiB}
	failed := Status{Code: 1}
	for _, c := range []struct {
		name   string
		e      Evidence
		want   Outcome
		source string
	}{
		{"success", Evidence{}, Done, "exit_status"},
		{"a launcher that says 0 after an uncaught OOM", Evidence{Processes: []*Process{raised}}, DeviceOOM, "events"},
		{"an event outweighs the log", Evidence{Status: failed, Processes: []*Process{raised}, Log: log(Failed, true, Figures{})}, DeviceOOM, "events"},
		{"an OOM that the program survived, then success", Evidence{Processes: []*Process{survived}}, Done, "exit_status"},
		{"an OOM that the program survived, then a bug", Evidence{Status: failed, Processes: []*Process{{Hello: hello, Observed: raised.Observed, Exited: true, Exception: bug.Exception}}}, Failed, "events"},
		{"caught, and given up", Evidence{Status: failed, Processes: []*Process{swallowed}}, DeviceOOM, "events"},
		{"the launcher's error file", Evidence{Status: failed, ErrorLog: log(DeviceOOM, true, full)}, DeviceOOM, "error_file"},
		{"the log alone", Evidence{Status: failed, Log: log(DeviceOOM, true, full)}, DeviceOOM, "log"},
		{"a disguised error on a full card", Evidence{Status: failed, Log: log(DeviceOOM, false, full)}, DeviceOOM, "log"},
		{"a disguised error on an empty card", Evidence{Status: failed, Log: log(DeviceOOM, false, Figures{})}, Failed, "exit_status"},
		{"a bug", Evidence{Status: failed, Processes: []*Process{bug}}, Failed, "events"},
		{"the kernel's OOM killer", Evidence{Status: Status{Signal: syscall.SIGKILL}, KernelKills: 1}, HostOOM, "kernel"},
		{"a bare kill proves nothing", Evidence{Status: Status{Signal: syscall.SIGKILL}}, Failed, "exit_status"},
		{"stopped by the user", Evidence{Status: failed, Asked: syscall.SIGINT}, Stopped, "signal"},
		{"the first of two ranks", Evidence{Status: failed, Processes: []*Process{later, raised}}, DeviceOOM, "events"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := Judge(c.e)
			if v.Outcome != c.want || v.Source != c.source {
				t.Errorf("%s by %s; want %s by %s", v.Outcome, v.Source, c.want, c.source)
			}
		})
	}
	if v := Judge(Evidence{Status: failed, Processes: []*Process{later, raised}}); v.Process != raised {
		t.Error("the later rank is blamed")
	}
}

func TestJudgeTellsKindsApart(t *testing.T) {
	for _, c := range []struct {
		name string
		f    Figures
		want Outcome
	}{
		{"the job fills the card", Figures{units.GiB, 24 * units.GiB, units.GiB / 2, 23 * units.GiB, 23 * units.GiB, 0}, DeviceOOM},
		{"large pieces are cached", Figures{units.GiB, 24 * units.GiB, units.GiB / 2, 19 * units.GiB, 23 * units.GiB, 0}, Fragmented},
		{"others hold most of it", Figures{units.GiB, 24 * units.GiB, units.GiB / 2, 3 * units.GiB, 3 * units.GiB, 20 * units.GiB}, OtherTenant},
		{"others hold a little", Figures{units.GiB, 24 * units.GiB, units.GiB / 2, 22 * units.GiB, 22 * units.GiB, units.GiB}, DeviceOOM},
	} {
		v := Verdict{Outcome: DeviceOOM, Figures: c.f}
		v.refine()
		if v.Outcome != c.want {
			t.Errorf("%s: %s, want %s", c.name, v.Outcome, c.want)
		}
	}
}

func TestEventsSurviveTornAndForeignLines(t *testing.T) {
	p := &Process{}
	text := `{"proto":1,"kind":"hello","pid":7,"rank":0}
{"kind":"step","n":3,"peak":100,"peak_reserved":120}
not json
{"kind":"from_a_newer_minor","x":1}
{"proto":2,"kind":"hello","pid":8}
{"kind":"oom_observed","tried":5,"total":50}
{"kind":"exit"}
{"kind":"step","n":9`
	for i := 0; i < len(text); i += 7 { // in pieces, as it is read while written
		p.Feed([]byte(text[i:min(i+7, len(text))]))
	}
	if p.Hello.PID != 7 || p.Steps != 3 || p.Peak != 100 || len(p.Observed) != 1 || !p.Exited || p.Skipped != 2 {
		t.Errorf("%+v", p)
	}
}

func FuzzEvents(f *testing.F) {
	f.Add([]byte(`{"proto":1,"kind":"hello"}` + "\n" + `{"kind":"calibration","trials":[{"rows":1,"ok":true}]}` + "\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p := &Process{}
		p.Feed(data)
		p.Feed([]byte(strings.Repeat("x", maxEventLine+1)))
		if len(p.rest) > maxEventLine {
			t.Fatal("unbounded")
		}
		Judge(Evidence{Status: Status{Code: 1}, Processes: []*Process{p}})
	})
}

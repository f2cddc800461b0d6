package supervise

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"unoom/internal/ledger"
)

// tellRetry says in two lines what happened and what follows.
func (s *session) tellRetry(n int, past Past, next Next, settings ledger.Settings) {
	v := past.Verdict
	s.sayFailed(n, v)
	s.Say(next.Why, anys(next.Args)...)
	if next.Roomy > 0 {
		rows := settings.MicroBatch * max(1, settings.Accumulation)
		s.Say("run_why_divisors", next.Roomy, settings.MicroBatch, rows)
	}
	if settings.Resume != "" {
		s.Say("run_resume", settings.Resume)
	} else {
		s.Say("run_from_start")
	}
}

// sayFailed says how attempt n failed, as far as it is known.
func (s *session) sayFailed(n int, v Verdict) {
	id, where := "run_failed_"+string(v.Outcome), v.Phase
	switch v.Outcome {
	case DeviceOOM, Fragmented, OtherTenant:
		if v.Outcome != OtherTenant && (v.Figures.Tried == 0 || v.Figures.Capacity == 0) {
			id = "run_failed_bare"
		} else if where == "" {
			id += "_unplaced"
		}
	}
	if v.Process != nil {
		where += fmt.Sprintf(", step %d", v.Step)
	}
	s.Say(id, n, where, v.Figures.Tried.String(), v.Figures.Capacity.String())
}

// end closes the run and returns its status.
func (s *session) end(n int, past Past, next Next, status int) (int, error) {
	v := past.Verdict
	end := ledger.End{Status: status, Outcome: string(v.Outcome), Attempts: n}
	switch {
	case next.Action == ActionGiveUp:
		end.Status = StatusDoesNotFit
		end.Next = s.writeNext(past, next)
		s.sayFailed(n, v)
		s.Say(next.Why, anys(next.Args)...)
		if end.Next != "" {
			s.Say("run_next_written", end.Next)
		}
	case v.Outcome.IsOOM() || v.Outcome == SharedMemory:
		s.sayFailed(n, v)
		s.Say(next.Why, anys(next.Args)...)
		if v.Outcome.IsOOM() && s.forward.ending() != 0 {
			following := Decide(s.past, s.can, s.Limits)
			end.Next = s.writeNext(past, following)
			end.Status = StatusRunAgain
			if following.Action == ActionRetry {
				following.Settings.Resume = s.newestCheckpoint().Path
				s.remember(following.Settings)
			}
		}
	case v.Outcome == Done && n > 1:
		if past.Settings.MicroBatch > 0 && past.Micro > 0 {
			s.Say("run_done", n-1, past.Micro, past.Accumulation)
		} else {
			s.Say("run_done_as_written", n-1)
		}
		past.Settings.Resume = "" // a run that has ended begins anew
		s.remember(past.Settings)
	case past.Broken:
		s.Say("run_why_counters")
		end.Status = StatusFailed
	case v.Outcome == Failed && n > 1:
		s.Say("run_why_bug")
	}
	s.tellNext(n, nodeNext{next.Action, end.Status})
	s.note(ledger.Record{Kind: ledger.KindEnd, End: &end})
	s.terminationMessage(end, next)
	return end.Status, nil
}

// terminationLog is where Kubernetes looks for the reason that a container
// ended (the default of terminationMessagePath).
const terminationLog = "/dev/termination-log"

// terminationMessage tells Kubernetes why the run ended; it keeps 4096 bytes.
func (s *session) terminationMessage(end ledger.End, next Next) {
	if environ(s.Env).get("KUBERNETES_SERVICE_HOST") == "" {
		return
	}
	path := terminationLog
	if p := environ(s.Env).get("UNOOM_TERMINATION_LOG"); p != "" {
		path = p
	}
	if _, err := os.Stat(path); err != nil {
		return
	}
	text, err := json.Marshal(map[string]any{
		"run": s.id, "status": end.Status, "outcome": end.Outcome, "attempts": end.Attempts,
		"why": next.Why, "settings": next.Settings, "next": end.Next,
	})
	if err == nil && len(text) <= 4096 {
		_ = os.WriteFile(path, text, 0o644)
	}
}

// writeNext leaves the settings that would come next, for a person, a scheduler
// or the next run.
func (s *session) writeNext(past Past, next Next) string {
	if s.dir == "" {
		return ""
	}
	path := filepath.Join(s.dir, "next.json")
	doc := map[string]any{
		"schema": "unoom/next/v1", "run": s.id, "command": s.Command, "action": next.Action,
		"settings": next.Settings, "remedies": next.Remedies, "why": next.Why, "args": next.Args,
		"outcome": past.Verdict.Outcome, "resume": s.newestCheckpoint().Path,
		"capacity_bytes": past.Verdict.Figures.Capacity,
	}
	if cal := past.Verdict.calibration(); cal != nil {
		doc["persistent_bytes"] = cal.Persistent
		if f, ok := fitOf(past.Verdict, false); ok {
			doc["needs_bytes"] = f.at(f.fullRows)
		}
	}
	if writeJSON(path, doc) != nil {
		return ""
	}
	return path
}

// writeJSON writes a file atomically.
func writeJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	tmp := path + "." + strconv.Itoa(os.Getpid()) + ".part"
	if err := os.WriteFile(tmp, append(data, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

package cli

import (
	"io"
	"os"
	"sync"

	"github.com/spf13/cobra"

	"unoom/internal/ledger"
	"unoom/internal/memory"
	"unoom/internal/supervise"
	"unoom/internal/workload"
)

// predictorOf returns what the memory engine says of a command, or nil if the
// command and its configuration files do not say what is trained. It is asked
// while the command runs, and never in its way.
func (a *app) predictorOf(o supervise.Options, configs []string) supervise.Predictor {
	quiet := *a // what cannot be read is no fault of the run's
	quiet.Err = io.Discard
	var mu sync.Mutex
	var engine *memory.Engine
	known := true
	return func(s ledger.Settings) *ledger.Predicted {
		mu.Lock()
		defer mu.Unlock()
		if !known {
			return nil
		}
		w, err := quiet.workloadOf(o, configs, s)
		if err == nil && engine == nil {
			engine, err = memory.New()
		}
		if err != nil {
			known = false
			return nil
		}
		est, err := estimateOf(engine, w)
		if err != nil {
			return nil
		}
		p := est.Allocated
		return &ledger.Predicted{Low: p.Low, Mid: p.Mid, High: p.High, Reserved: est.Reserved.High, Source: "engine"}
	}
}

// workloadOf reads the command as `estimate -- COMMAND` does, with the settings
// of an attempt in it.
func (a *app) workloadOf(o supervise.Options, configs []string, s ledger.Settings) (*workload.Workload, error) {
	var w workloadFlags
	w.add(&cobra.Command{})
	w.configs = configs
	argv := supervise.ParseTemplate(o.Command).Fill(s, o.GlobalBatch, 1)
	if err := w.state(argv, 0); err != nil {
		return nil, err
	}
	m, err := a.modelOf(&w)
	if err != nil {
		return nil, err
	}
	cards, err := a.cardsOf(&w)
	if err != nil {
		return nil, err
	}
	out, err := w.build(m, cards)
	if err != nil {
		return nil, err
	}
	if s.MicroBatch > 0 {
		out.MicroBatch, out.Accumulation = int64(s.MicroBatch), int64(max(1, s.Accumulation))
	}
	if s.Checkpointing == "full" {
		out.Checkpointing = workload.FullCheckpoint
	}
	return out, nil
}

// thisMachine returns how far the engine was off in the runs of this machine, nil
// where there are too few.
func (a *app) thisMachine() *ledger.Calibration {
	host, err := os.Hostname()
	if err != nil {
		return nil
	}
	list, err := ledger.Default(a.Getenv).List(supervise.Alive)
	if err != nil {
		return nil
	}
	c, ok := ledger.Calibrate(list, host)
	if !ok {
		return nil
	}
	return &c
}

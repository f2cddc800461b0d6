package diagnose

import (
	"cmp"
	"errors"
	"math"
	"os"
	"slices"
	"strconv"
	"testing"

	"unoom/internal/account"
	"unoom/internal/accuracy"
	"unoom/internal/gpu"
	"unoom/internal/memory"
	"unoom/internal/model"
	"unoom/internal/remedy"
	"unoom/internal/units"
	"unoom/internal/workload"
)

// What a change saves, by the engine and by what a message alone tells, against
// measured runs that differ in nothing else.
func TestPredictedSavingsAgainstMeasuredPairs(t *testing.T) {
	f, err := os.Open("../../../shared/corpus/truth/dev.csv")
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("no ../shared/corpus/truth: savings are not compared with measured runs")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := accuracy.ReadTable(f)
	if err != nil {
		t.Fatal(err)
	}
	engine := published(t)
	// Runs that are alike but for one column.
	alike := map[string][]workload.Row{}
	for _, column := range []string{"micro_batch", "checkpointing"} {
		for _, r := range rows {
			if accuracy.MetricOf(r["measured_metric"]) != accuracy.Allocated || measured(r) == 0 || r["outcome"] != "fits" {
				continue
			}
			key := column
			for _, c := range []string{"source", "model", "framework", "framework_version", "gpu", "world_size", "param_dtype", "compute_dtype", "optimizer", "method", "lora_rank", "lora_targets", "micro_batch", "seq_len_or_image", "grad_accum", "checkpointing", "attention", "sharding", "offload", "other", "measured_metric"} {
				if c != column {
					key += "\x00" + r[c]
				}
			}
			alike[key] = append(alike[key], r)
		}
	}
	var byEngine, byMessage []float64
	within, n := 0, 0
	for key, list := range alike {
		slices.SortFunc(list, func(a, b workload.Row) int { return cmp.Compare(measured(b), measured(a)) })
		if len(list) < 2 {
			continue
		}
		big, small := list[0], list[len(list)-1]
		saved := measured(big) - measured(small)
		if saved < 0.5 || len(engineOf(t, engine, big)) == 0 || len(engineOf(t, engine, small)) == 0 {
			continue
		}
		n++
		byEngine = append(byEngine, math.Abs(engineOf(t, engine, big)[0]-engineOf(t, engine, small)[0]-saved)/saved)
		code := remedy.Code("recompute.checkpointing")
		if key[0] == 'm' {
			code = "accumulate.split"
		}
		s := remedy.Situation{
			Account: &account.Account{Capacity: 80 * units.GiB, Parts: []account.Part{{Kind: account.Allocated, Bytes: units.Bytes(measured(big) * (1 << 30))}}},
			Tried:   units.GiB, Phase: remedy.PhaseBackward, MicroBatch: int(big.Number("micro_batch")), Params: big.Number("params"), Method: map[string]string{"full": "full", "lora": "lora", "qlora": "qlora"}[big["method"]],
		}
		if small.Number("micro_batch") > 0 && key[0] == 'm' {
			s.SplitBy = int(big.Number("micro_batch") / small.Number("micro_batch"))
		}
		if a, ok := remedy.Assess(s, code); ok && a.Saves != nil {
			byMessage = append(byMessage, math.Abs(a.Saves.Mid.GiB()-saved)/saved)
			if a.Saves.Low.GiB() <= saved && saved <= a.Saves.High.GiB() {
				within++
			}
		}
	}
	if n < 10 {
		t.Fatalf("%d pairs of measured runs", n)
	}
	t.Logf("%d pairs: the engine's saving is off by %.1f %% in the median, the middle of what a message tells by %.1f %% (its interval holds %d of %d)", n, 100*median(byEngine), 100*median(byMessage), within, len(byMessage))
	if m := median(byEngine); m > 0.05 {
		t.Errorf("savings of the engine are off by %.1f %% in the median", 100*m)
	}
	if 10*within < 9*len(byMessage) {
		t.Errorf("the interval of what a message tells holds %d of %d", within, len(byMessage))
	}
}

func published(t *testing.T) *accuracy.Predictor {
	t.Helper()
	engine, err := memory.New()
	if err != nil {
		t.Fatal(err)
	}
	models, err := model.Published()
	if err != nil {
		t.Fatal(err)
	}
	cards, err := gpu.Published()
	if err != nil {
		t.Fatal(err)
	}
	return &accuracy.Predictor{Engine: engine, Models: models, Cards: cards}
}

func measured(r workload.Row) float64 {
	x, err := strconv.ParseFloat(r["measured_gib"], 64)
	if err != nil {
		return 0
	}
	return x
}

// engineOf returns the allocated peak in GiB, none where the engine cannot play it.
func engineOf(t *testing.T, p *accuracy.Predictor, r workload.Row) []float64 {
	t.Helper()
	_, est := p.Predict(r)
	if est == nil {
		return nil
	}
	return []float64{est.Allocated.Mid.GiB()}
}

func median(list []float64) float64 {
	if len(list) == 0 {
		return math.NaN()
	}
	slices.Sort(list)
	return list[len(list)/2]
}

package memory

import (
	"encoding/csv"
	"fmt"
	"os"
	"strings"
	"testing"

	"unoom/internal/model"
	"unoom/internal/workload"
)

func TestTry(t *testing.T) {
	f, err := os.Open("/work/shared/corpus/truth/dev.csv")
	if err != nil {
		t.Skip()
	}
	recs, _ := csv.NewReader(f).ReadAll()
	for _, rec := range recs[1:] {
		r := workload.Row{}
		for i, h := range recs[0] {
			r[h] = rec[i]
		}
		if r["source"] != "fms-acceleration" || r["strict"] != "1" {
			continue
		}
		w, err := workload.FromRow(r, func(r workload.Row) (*model.Model, error) {
			return model.FromDims(r["model"], model.Dims{Layers: r.Number("layers"), Hidden: r.Number("hidden"), Heads: r.Number("heads"), KVHeads: r.Number("kv_heads"), FFN: r.Number("ffn"), Vocab: r.Number("vocab")})
		})
		if err != nil {
			fmt.Println(r["id"], err)
			continue
		}
		w.Adapter.Dropout = 0.1
		if w.Base == workload.NF4 {
			w.Base = workload.NF4Double
		}
		lib := library{attn: attnFlash, reentrant: true, fusedLoRA: w.Kernels.FusedLoRA != ""}
		if w.Kernels.FusedNorm != "" {
			lib.norm, lib.rope = normInPlace, ropeUnsloth
		}
		if strings.HasPrefix(w.Versions["transformers"], "4.45") {
			lib.loss, lib.repeatKV = lossForwardCopy, true
		} else {
			lib.sharedRope = true
		}
		if w.Loss == workload.LossLiger {
			lib.loss = lossFusedLinear
		}
		res, err := play(w, lib)
		if err != nil {
			fmt.Println(r["id"], err)
			continue
		}
		var want float64
		fmt.Sscanf(r["measured_gib"], "%f", &want)
		raw := r["notes"][strings.Index(r["notes"], "raw=")+4:]
		fmt.Sscanf(raw, "%f", &want)
		if os.Getenv("ROW") == r["id"] {
			for _, s := range res.x.breakdown(res.peak.at) {
				fmt.Println("   ", s.Kind, s.Name, s.Bytes, s.Count, float64(s.Bytes)/float64(w.Tokens()*w.Model.Hidden))
			}
		}
		fmt.Printf("%s %-6s %-9s %-30s mb%-2s %s pred %.0f want %.0f diff %.0f (%.3f%%) %s/%s res %.2f\n", r["id"], r["method"], r["param_dtype"], w.Options["framework_config"], r["micro_batch"], w.Versions["transformers"], float64(res.peak.allocated), want, float64(res.peak.allocated)-want, (float64(res.peak.allocated)/want-1)*100, res.peak.phase, res.peak.label, float64(res.reserved)/(1<<30))
	}
}

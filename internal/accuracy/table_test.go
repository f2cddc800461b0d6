package accuracy

import (
	"strings"
	"testing"

	"unoom/internal/gpu"
	"unoom/internal/model"
	"unoom/internal/workload"
)

const measured = `id,source,model,framework,micro_batch,seq_len_or_image,method,param_dtype,compute_dtype,optimizer,attention,sharding,offload,checkpointing,gpu,measured_metric,measured_gib,outcome,strict
a,s,gpt2,PyTorch,2,128,full,fp32,fp32,AdamW,sdpa,none,none,off,RTX-3090,torch max_memory_allocated,1.5,fits,1
`

func TestReadTable(t *testing.T) {
	rows, err := ReadTable(strings.NewReader(measured))
	if err != nil || len(rows) != 1 || rows[0]["model"] != "gpt2" || rows[0].Number("micro_batch") != 2 {
		t.Fatal(rows, err)
	}
	for text, want := range map[string]string{
		"":                              "read the header of the table: EOF",
		"id,model\n":                    `the table has no column "source"`,
		measured + "\"open":             "read the table: ",
		measured + "too,few\n":          "read the table: ",
		strings.ToUpper(measured[:200]): `the table has no column "id"`,
	} {
		if _, err := ReadTable(strings.NewReader(text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%.30q: %v, want %s…", text, err, want)
		}
	}
}

// FuzzTable: no table makes reading or the reading of its rows panic.
func FuzzTable(f *testing.F) {
	f.Add(measured)
	f.Add("id,source,model,framework,micro_batch,measured_metric,measured_gib,outcome,sharding,other\nb,s,x,Megatron-LM,1,reserved,3,OOM,TP2 PP0,micro-batch-size=9\n")
	models, err := model.Published()
	if err != nil {
		f.Fatal(err)
	}
	cards, err := gpu.Published()
	if err != nil {
		f.Fatal(err)
	}
	p := &Predictor{Models: models, Cards: cards}
	f.Fuzz(func(t *testing.T, text string) {
		rows, err := ReadTable(strings.NewReader(text))
		if err != nil {
			return
		}
		for _, r := range rows[:min(len(rows), 20)] {
			if w, err := workload.FromRow(r, p.find); err == nil {
				p.card(w)
			}
		}
	})
}

// A user's own table has no marks: every row of it is meant.
func TestTableWithoutMarksIsCompared(t *testing.T) {
	without := strings.ReplaceAll(strings.ReplaceAll(measured, ",strict", ""), "fits,1", "fits")
	for text, want := range map[string]bool{without: true, measured: true, strings.ReplaceAll(measured, "fits,1", "fits,0"): false} {
		rows, err := ReadTable(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		rows[0]["method"] = "" // only the reading is looked at
		if c, _ := new(Predictor).Predict(rows[0]); c.Strict != want || c.WhyNot != "method is not stated" {
			t.Errorf("%s: strict %v, %q", text, c.Strict, c.WhyNot)
		}
	}
}

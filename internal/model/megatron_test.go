package model

import (
	"encoding/csv"
	"errors"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
)

// flagsOf reads "a=1 b c=x" as the arguments of a launch.
func flagsOf(text string) func(string) (string, bool) {
	flags := map[string]string{}
	for field := range strings.FieldsSeq(text) {
		name, value, _ := strings.Cut(field, "=")
		flags[name] = value
	}
	return func(name string) (string, bool) { v, ok := flags[name]; return v, ok }
}

const toyGPT = "num-layers=12 hidden-size=512 num-attention-heads=8 seq-length=1024 max-position-embeddings=1024 bf16"

// The counts are those of tests in Megatron's CI with a vocabulary of 50,257.
func TestMegatronParams(t *testing.T) {
	for _, c := range []struct {
		name, flags string
		want        int64
	}{
		{"learned positions, tied", toyGPT, 64109568},
		{"rotary", toyGPT + " position-embedding-type=rope", 63585280},
		{"untied", toyGPT + " untie-embeddings-and-output-weights", 89865216},
	} {
		m, err := FromMegatron(c.name, 50257, flagsOf(c.flags))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := m.Params(); got != c.want {
			t.Errorf("%s: %d parameters, want %d", c.name, got, c.want)
		}
	}
}

func TestMegatronSaysWhatIsWrong(t *testing.T) {
	for flags, want := range map[string]string{
		"hidden-size=512 num-attention-heads=8":                                       "num-layers",
		"num-layers=2 hidden-size=x num-attention-heads=8":                            "hidden-size",
		"num-layers=2 hidden-size=500 num-attention-heads=8":                          "num-attention-heads",
		toyGPT + " num-experts=4 moe-layer-freq=([0]*3)":                              "moe-layer-freq",
		toyGPT + " hybrid-layer-pattern=MXM":                                          "hybrid-layer-pattern",
		toyGPT + " position-embedding-type=mrope":                                     "position-embedding-type",
		toyGPT + " group-query-attention num-query-groups=3":                          "num_key_value_heads",
		"num-layers=2 hidden-size=512 num-attention-heads=8 ffn-hidden-size=99999999": "ffn-hidden-size",
	} {
		_, err := FromMegatron("m", 50257, flagsOf(flags))
		if e, ok := errors.AsType[*ConfigError](err); !ok || e.Key != want {
			t.Errorf("%s: %v; want an error about %s", flags, err, want)
		}
	}
}

// truthRows reads the table of measurements, where it is.
func truthRows(t *testing.T) []map[string]string {
	t.Helper()
	f, err := os.Open("../../../shared/corpus/truth/dev.csv")
	if err != nil {
		t.Skip("the corpus of measurements is not here: ", err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var out []map[string]string
	for _, row := range rows[1:] {
		r := map[string]string{}
		for i, v := range row {
			r[rows[0][i]] = v
		}
		out = append(out, r)
	}
	return out
}

func TestMegatronRowsOfTheCorpus(t *testing.T) {
	built, known := 0, 0
	for _, r := range truthRows(t) {
		if r["source"] != "megatron-lm-ci" {
			continue
		}
		sharding := strings.Fields(r["sharding"])
		tp := "1"
		if len(sharding) > 0 {
			tp = strings.TrimPrefix(sharding[0], "TP")
		}
		m, err := FromMegatron(r["model"], 50257, flagsOf(r["other"]+" tensor-model-parallel-size="+tp))
		if err != nil {
			if r["strict"] == "1" {
				t.Errorf("%s: %v", r["id"], err)
			}
			continue
		}
		built++
		if want, _ := strconv.ParseInt(r["params"], 10, 64); want > 0 {
			known++
			// The table leaves out norms of queries and keys, and one bias.
			if got := m.Params(); math.Abs(float64(got)/float64(want)-1) > 1e-4 {
				t.Errorf("%s: %d parameters, the table says %d (%s)", r["id"], got, want, r["other"])
			}
		}
	}
	t.Logf("%d rows built, %d with a parameter count", built, known)
}

package model

import (
	"errors"
	"math"
	"testing"
)

// published returns the embedded catalogue.
func published(t testing.TB) Catalogue {
	t.Helper()
	c, err := Published()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestEveryPublishedModelHasItsParameters(t *testing.T) {
	c := published(t)
	if len(c) < 80 {
		t.Errorf("the catalogue has %d models", len(c))
	}
	for i := range c {
		e := &c[i]
		m, err := e.Model(Options{})
		if err != nil {
			t.Error(err)
			continue
		}
		if got := m.Params(); got != e.Params {
			t.Errorf("%s: %d parameters, published are %d (%+.4f %%)", e.Name, got, e.Params, 100*(float64(got)/float64(e.Params)-1))
		}
	}
}

func TestNamesOfTheCatalogueAreDistinct(t *testing.T) {
	seen := map[string]string{}
	for _, e := range published(t) {
		own := map[string]bool{}
		for _, name := range append(e.Aliases, e.Name) {
			own[plain(name)] = true
		}
		for key := range own {
			if other, twice := seen[key]; twice {
				t.Errorf("%s and %s both answer to %q", e.Name, other, key)
			}
			seen[key] = e.Name
		}
	}
}

func TestFindForgives(t *testing.T) {
	c := published(t)
	for name, want := range map[string]string{
		"Llama-2-7B": "Llama-2-7B", "llama2 7b": "Llama-2-7B", "meta-llama/Llama-2-7b-hf": "Llama-2-7B",
		"LLAMA_3.1_8B": "Llama-3.1-8B", "qwen2.5-7b-instruct": "Qwen2.5-7B", "unsloth/Qwen3-8B-bnb-4bit": "Qwen3-8B",
		"gpt2": "GPT-2", "bert-large-uncased": "BERT-large", "gemma-7b-it": "Gemma-7B", "mixtral-8x7b": "Mixtral-8x7B",
	} {
		e, err := c.Find(name)
		if err != nil || e.Name != want {
			t.Errorf("%q: %v, %v; want %s", name, e, err, want)
		}
	}
}

func TestFindNamesTheNearest(t *testing.T) {
	c := published(t)
	_, err := c.Find("llama-2")
	if u, ok := errors.AsType[*UnknownModelError](err); !ok || len(u.Several) != 3 {
		t.Errorf("llama-2: %v; want the three sizes", err)
	}
	_, err = c.Find("mistrall-7b-v0.1")
	if u, ok := errors.AsType[*UnknownModelError](err); !ok || len(u.Nearest) == 0 || u.Nearest[0] != "Mistral-7B-v0.1" {
		t.Errorf("a slip: %+v; want Mistral-7B-v0.1 first", err)
	}
	_, err = c.Find("zzzzqqqq")
	if u, ok := errors.AsType[*UnknownModelError](err); !ok || len(u.Nearest)+len(u.Several) != 0 {
		t.Errorf("nonsense: %+v; want no suggestion", err)
	}
}

func TestActiveParamsOfMixtures(t *testing.T) {
	c := published(t)
	for name, billions := range map[string]float64{ // as the publishers round them; gpt-oss with its embedding
		"Mixtral-8x7B": 12.9, "Qwen3-30B-A3B": 3.3, "Qwen3-235B-A22B": 22, "DeepSeek-V3": 37, "gpt-oss-20b": 4.19, "OLMoE-1B-7B": 1.3,
	} {
		e, err := c.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		m, err := e.Model(Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := float64(m.ActiveParams()) / 1e9; math.Abs(got/billions-1) > 0.03 {
			t.Errorf("%s: %.2f billion parameters are active, published are %.1f", name, got, billions)
		}
	}
}

func TestPartsSumToTheParameters(t *testing.T) {
	for _, e := range published(t) {
		m, err := e.Model(Options{})
		if err != nil {
			t.Fatal(err)
		}
		var sum int64
		for _, p := range m.Parts() {
			sum += p.Params
		}
		if sum != m.Params() {
			t.Errorf("%s: the parts have %d parameters, the model %d", e.Name, sum, m.Params())
		}
	}
}

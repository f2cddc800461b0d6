package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var jsonKey = regexp.MustCompile(`^[a-z0-9_]+$`)

// Programs read the output by its keys, which are lower case everywhere.
func TestKeysOfJSONAreLowerCase(t *testing.T) {
	home := t.TempDir()
	table := filepath.Join(home, "measured.csv")
	row := "id,source,model,framework,micro_batch,seq_len,measured_metric,measured_gib,outcome\nmine-1,mine,gpt2,PyTorch,2,512,max_memory_allocated,4.2,fits\n"
	if err := os.WriteFile(table, []byte(row), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"explain ../../examples/oom.log",
		"explain ../../examples/snapshot.pickle",
		"explain --list",
		"replay ../../examples/snapshot.pickle --sweep",
		"estimate --model gpt2 --gpu t4 --micro-batch 2",
		"plan --model gpt2 --gpu t4 --global-batch 16 --why",
		"plan --model gpt2 --gpu any --global-batch 16",
		"gpus h100",
		"models gpt2",
		"models",
		"emit deepspeed --model gpt2 --gpu t4 --micro-batch 2",
		"accuracy " + table,
		"runs",
	} {
		out := new(bytes.Buffer)
		getenv := func(key string) string { return map[string]string{"UNOOM_HOME": home, "HOME": home}[key] }
		Main(append(strings.Fields(line), "--json"), Streams{In: strings.NewReader(""), Out: out, Err: new(bytes.Buffer), Getenv: getenv})
		var v any
		if err := json.Unmarshal(out.Bytes(), &v); err != nil {
			t.Errorf("unoom %s --json: %v", line, err)
			continue
		}
		checkKeys(t, line, v)
	}
}

func checkKeys(t *testing.T, where string, v any) {
	t.Helper()
	switch v := v.(type) {
	case map[string]any:
		for k, inner := range v {
			if !jsonKey.MatchString(k) {
				t.Errorf("unoom %s: the key %q", where, k)
			}
			checkKeys(t, where, inner)
		}
	case []any:
		for _, inner := range v {
			checkKeys(t, where, inner)
		}
	}
}

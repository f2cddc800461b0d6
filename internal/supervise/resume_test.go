package supervise

import (
	"archive/zip"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// tree writes files; "zip:" makes a complete torch.save file.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if text == "zip:" {
			f, err := os.Create(path)
			if err != nil {
				t.Fatal(err)
			}
			z := zip.NewWriter(f)
			if _, err := z.Create("archive/data.pkl"); err != nil {
				t.Fatal(err)
			}
			z.Close()
			f.Close()
			continue
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func hfFiles(step string) map[string]string {
	p := "checkpoint-" + step + "/"
	return map[string]string{
		p + "model.safetensors": "x", p + "optimizer.pt": "x", p + "scheduler.pt": "x", p + "trainer_state.json": `{"global_step": ` + step + `}`,
	}
}

func merge(maps ...map[string]string) map[string]string {
	out := map[string]string{}
	for _, m := range maps {
		for k, v := range m {
			out[k] = v
		}
	}
	return out
}

func TestNewestCheckpointIsTheNewestComplete(t *testing.T) {
	torn := hfFiles("1000")
	delete(torn, "checkpoint-1000/trainer_state.json")
	half := hfFiles("300")
	half["checkpoint-300/trainer_state.json"] = `{"global_st`
	sharded := hfFiles("400")
	delete(sharded, "checkpoint-400/model.safetensors")
	sharded["checkpoint-400/model.safetensors.index.json"] = `{"weight_map":{"a":"model-1.safetensors","b":"model-2.safetensors"}}`
	sharded["checkpoint-400/model-1.safetensors"] = "x"
	for _, c := range []struct {
		name   string
		files  map[string]string
		format string
		path   string // relative; "" for none
	}{
		{"nothing", nil, "", ""},
		{"Trainer, by number and not by name", merge(hfFiles("90"), hfFiles("200")), "hf", "checkpoint-200"},
		{"Trainer, killed while saving", merge(hfFiles("90"), torn), "hf", "checkpoint-90"},
		{"Trainer, half a state file", merge(hfFiles("90"), half), "hf", "checkpoint-90"},
		{"Trainer, a shard is missing", merge(hfFiles("90"), sharded), "hf", "checkpoint-90"},
		{"Lightning", map[string]string{"lightning_logs/version_0/checkpoints/epoch=0-step=10.ckpt": "zip:"}, "lightning",
			"lightning_logs/version_0/checkpoints/epoch=0-step=10.ckpt"},
		{"Lightning, torn", map[string]string{"a.ckpt": "PK\x03\x04 and no directory"}, "", ""},
		{"DCP", map[string]string{"checkpoint/step-10/.metadata": "x", "checkpoint/step-20/__0_0.distcp": "x"}, "dcp", "checkpoint/step-10"},
		{"DeepSpeed", map[string]string{"latest": "global_step20", "global_step20/mp_rank_00_model_states.pt": "x"}, "deepspeed", "."},
		{"DeepSpeed, the pointer is ahead", map[string]string{"latest": "global_step20"}, "", ""},
		{"a pointer out of the folder", map[string]string{"latest": "../../etc"}, "", ""},
		{"Megatron", map[string]string{"latest_checkpointed_iteration.txt": "500\n", "iter_0000500/mp_rank_00/model_optim_rng.pt": "x"}, "megatron", "."},
		{"torchtune", map[string]string{"epoch_1/model.safetensors": "x", "recipe_state/recipe_state.pt": "x"}, "torchtune", "epoch_1"},
		{"accelerate", map[string]string{"checkpoints/checkpoint_3/model.safetensors": "x", "checkpoints/checkpoint_3/random_states_0.pkl": "x"}, "accelerate", "checkpoints/checkpoint_3"},
		{"a file of the script's own", map[string]string{"last.pt": "zip:", "torn.pt": "zi"}, "file", "last.pt"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := tree(t, c.files)
			got, ok := NewestCheckpoint(dir, time.Time{})
			if !ok {
				if c.path != "" {
					t.Fatalf("none, want %s", c.path)
				}
				return
			}
			rel, _ := filepath.Rel(dir, got.Path)
			if got.Format != c.format || rel != c.path {
				t.Errorf("%s %s; want %s %s", got.Format, rel, c.format, c.path)
			}
		})
	}
}

func TestCheckpointsOfEarlierRunsAreLeftAlone(t *testing.T) {
	dir := tree(t, hfFiles("90"))
	if c, ok := NewestCheckpoint(dir, time.Now().Add(time.Hour)); ok {
		t.Errorf("took %s", c.Path)
	}
}

package workload

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

var update = flag.Bool("update", false, "rewrite the want sections of testdata/read")

// TestRead reads the configurations of testdata/read. An archive holds files in
// the form of a project; its comment says what is read ("config: NAME" or
// "command: WORDS", one a line, and flags as "flag: field=value"); the section
// want is all that was understood, with where it stood. After a change that is
// meant:
//
//	go test ./internal/workload -run TestRead -update
func TestRead(t *testing.T) {
	archives, err := filepath.Glob("testdata/read/*.txtar")
	if err != nil || len(archives) == 0 {
		t.Fatal("no archives", err)
	}
	for _, file := range archives {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := understood(a)
			at := slices.IndexFunc(a.Files, func(f txtar.File) bool { return f.Name == "want" })
			if *update {
				if at < 0 {
					a.Files = append(a.Files, txtar.File{Name: "want"})
					at = len(a.Files) - 1
				}
				a.Files[at].Data = []byte(got)
				if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if at < 0 || string(a.Files[at].Data) != got {
				t.Errorf("understood:\n%s", got)
			}
		})
	}
}

func archiveOpen(a *txtar.Archive) Open {
	return func(name string) ([]byte, error) {
		for _, f := range a.Files {
			if f.Name == name && name != "want" {
				return f.Data, nil
			}
		}
		return nil, fs.ErrNotExist
	}
}

// understood writes what the sources of an archive say together.
func understood(a *txtar.Archive) string {
	var b strings.Builder
	var files, commands []*Reading
	flags := Settings{}
	for line := range strings.Lines(string(a.Comment)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		var r *Reading
		var err error
		switch key {
		case "config":
			r, err = ReadFile(value, archiveOpen(a))
			files = append(files, r)
		case "command":
			r, err = ReadCommand((&shell{vars: map[string]string{}}).words(value), archiveOpen(a))
			commands = append(commands, r)
		case "flag":
			f, v, _ := strings.Cut(value, "=")
			flags[Field(f)] = Stated{Value: v, Name: "--" + f}
		}
		if err != nil {
			return fmt.Sprintf("error: %v\n", err)
		}
	}
	s := Combine(flags, commands, files)
	fmt.Fprintf(&b, "kinds: %v\n", s.Kinds)
	for _, f := range Fields() {
		if v, ok := s.Settings[f]; ok {
			fmt.Fprintf(&b, "%s = %s  (%s)\n", f, v.Value, v.Origin())
		}
	}
	var options []string
	for k, v := range s.Options {
		options = append(options, strings.TrimSuffix("option "+k+" = "+v, " = "))
	}
	slices.Sort(options)
	for _, o := range options {
		fmt.Fprintln(&b, o)
	}
	for _, d := range s.Defaults {
		if _, ok := s.Settings[d.Field]; !ok {
			fmt.Fprintf(&b, "default %s = %s  (%s)\n", d.Field, d.Value, d.Source)
		}
	}
	for _, w := range s.Warnings {
		fmt.Fprintf(&b, "warning %s %s %q\n", w.Code, w.Where, w.Args)
	}
	if err := s.Check(); err != nil {
		fmt.Fprintf(&b, "error: %v\n", err)
	}
	return b.String()
}

// Broken files say what is wrong and where.
func TestBrokenFiles(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"a brace is missing", "{\"train_batch_size\": 8,\n \"bf16\": {\"enabled\": true}\n", "f:2:27: the file ends within a value: a closing brace or bracket is missing"},
		{"a comma is missing", "{\"a\": 1\n \"b\": 2}", "f:2:2: this is not JSON: invalid character '\"' after object key:value pair"},
		{"two values", "{} {}", "f:1:5: something follows the closing brace"},
		{"YAML with a tab", "base_model: x\n\tmicro_batch_size: 2\n", "f:2:"},
		{"YAML key twice", "base_model: x\nmicro_batch_size: 2\nmicro_batch_size: 4\n", "f:3"},
		{"TOML without a value", "[training]\nseq_len =\n", "f:2:"},
		{"empty", "  \n", "f: the file is empty"},
		{"binary", "\x80\x02\x00", "f: this is binary"},
		{"something else", "apiVersion: v1\nkind: Pod\n", "f: is no configuration of a training run that unoom knows; its keys are apiVersion, kind"},
		{"a list", "- a\n- b\n", "f: is no configuration"},
	} {
		_, err := ReadFile("f", func(string) ([]byte, error) { return []byte(c.text), nil })
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s…", c.name, err, c.want)
		}
	}
}

// Files that refer to each other end.
func TestCircularReference(t *testing.T) {
	text := []byte(`{"output_dir": "x", "per_device_train_batch_size": 2, "deepspeed": "a.json"}`)
	r, err := ReadFile("a.json", func(string) ([]byte, error) { return text, nil })
	if err != nil || len(r.flat()) > followMost+1 {
		t.Fatal(err, len(r.flat()))
	}
}

// Anchors that multiply do not fill the memory.
func TestBillionLaughs(t *testing.T) {
	var b bytes.Buffer
	b.WriteString("base_model: x\na0: &a0 [1,2,3,4,5,6,7,8,9]\n")
	for i := 1; i < 30; i++ {
		fmt.Fprintf(&b, "a%d: &a%d [*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d]\n", i, i, i-1, i-1, i-1, i-1, i-1, i-1, i-1, i-1, i-1)
	}
	_, err := ReadFile("f", func(string) ([]byte, error) { return b.Bytes(), nil })
	if _, ok := errors.AsType[*SyntaxError](err); !ok {
		t.Fatal(err)
	}
}

// FuzzReadFile: no input of any kind makes a reader panic or run on.
func FuzzReadFile(f *testing.F) {
	archives, _ := filepath.Glob("testdata/read/*.txtar")
	for _, file := range archives {
		a, err := txtar.ParseFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for _, x := range a.Files {
			if x.Name != "want" {
				f.Add(x.Data)
			}
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := ReadFile("f", func(string) ([]byte, error) { return data, nil })
		if err != nil {
			return
		}
		s := Combine(nil, nil, []*Reading{r})
		s.Check()
		for _, v := range s.Settings {
			if v.Name == "" {
				t.Errorf("a setting without a name: %+v", v)
			}
		}
	})
}

// FuzzReadCommand: the same of a command's words.
func FuzzReadCommand(f *testing.F) {
	f.Add("torchrun --nproc-per-node 8 train.py --per_device_train_batch_size 4")
	f.Add("srun --ntasks 8 bash -c 'python pretrain_gpt.py --num-layers 2 --hidden-size 64 --seq-length 128'")
	f.Add("tune run --nproc_per_node 2 full_finetune_distributed --config x.yaml batch_size=2")
	f.Fuzz(func(t *testing.T, text string) {
		if r, err := ReadCommand((&shell{vars: map[string]string{}}).words(text), func(string) ([]byte, error) { return nil, fs.ErrNotExist }); err == nil {
			Combine(nil, []*Reading{r}, nil).Check()
		}
	})
}

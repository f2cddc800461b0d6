package workload

import (
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// An override is a setting of a command on top of a file.
type override struct{ path, value, where string }

// looksScript reports whether a file is a shell script: its first line says so,
// or one of its lines launches a training run.
func looksScript(name string, data []byte) bool {
	if strings.HasPrefix(string(data[:min(len(data), 2)]), "#!") {
		return true
	}
	text := strings.TrimSpace(string(data[:min(len(data), 1<<16)]))
	return (path.Ext(name) == ".sh" || path.Ext(name) == ".slurm" || path.Ext(name) == ".sbatch" || launchLine.MatchString(text)) && !strings.HasPrefix(text, "{")
}

var launchLine = regexp.MustCompile(`(?m)^\s*(?:[A-Z_]+=\S+\s+)*(torchrun|accelerate launch|deepspeed|srun|python3? -m torch\.distributed|python3? \S+\.py|llamafactory-cli|tune run|litgpt|axolotl)\s`)

// commandLine is how a command that was typed is named.
const commandLine = "command line"

// ReadCommand reads the command that starts a run, word by word as a shell would
// pass it.
func ReadCommand(words []string, open Open) (*Reading, error) {
	for i, w := range words {
		if i == 0 && strings.ContainsAny(w, " \t\n") && len(words) == 1 { // pasted as one text
			return readScript(commandLine, []byte(w), open, 0)
		}
	}
	r := newReader("", KindScript, open, 0)
	r.out.Name = commandLine
	if !r.command(launch{words: words}, commandLine, nil) {
		return nil, wrong("give the whole command, such as torchrun --nproc-per-node 8 train.py …", "%s: no launcher or script in it: %s", commandLine, strings.Join(words[:min(len(words), 6)], " "))
	}
	return r.out, nil
}

// readScript reads a shell or Slurm script.
func readScript(name string, data []byte, open Open, depth int) (*Reading, error) {
	if len(data) > documentMost {
		return nil, &SyntaxError{File: name, Msg: "too large for a script"}
	}
	sh := &shell{}
	commands := sh.run(string(data))
	r := newReader(name, KindScript, open, depth)
	found := 0
	for _, l := range commands {
		where := name
		if name != commandLine {
			where += ":" + strconv.Itoa(l.line)
		}
		if found > 0 {
			probe := newReader(name, KindScript, func(string) ([]byte, error) { return nil, &UnknownKindError{} }, followMost)
			if probe.command(l, where, sh) {
				found++
			}
			continue
		}
		if r.command(l, where, sh) {
			found++
		}
	}
	if found == 0 {
		return nil, &UnknownKindError{File: name}
	}
	if found > 1 {
		r.out.Warnings = append(r.out.Warnings, Warning{WarnSeveral, name, []any{found}})
	}
	for _, key := range []string{"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"} {
		if v := sh.vars[key]; v != "" && !strings.Contains(v, "$") {
			r.out.Settings[FieldAllocConf] = Stated{Value: v, Name: key, Place: name}
		}
	}
	return r.out, nil
}

// command reads one simple command; false if it launches nothing.
func (r *reader) command(l launch, where string, sh *shell) bool {
	words := l.words
	srun := false
	for len(words) > 0 { // what stands before the launcher
		w := path.Base(words[0])
		if k, v, ok := strings.Cut(words[0], "="); ok && !strings.HasPrefix(k, "-") && assignmentName.MatchString(k) {
			if k == "PYTORCH_CUDA_ALLOC_CONF" || k == "PYTORCH_ALLOC_CONF" {
				r.out.Settings[FieldAllocConf] = Stated{Value: v, Name: k, Place: where}
			}
			words = words[1:]
			continue
		}
		switch w {
		case "nohup", "time", "exec", "env", "sudo", "stdbuf", "nsys", "numactl", "uv", "run", "poetry":
			words = words[1:]
			for len(words) > 0 && strings.HasPrefix(words[0], "-") {
				words = words[1:]
			}
			continue
		case "srun", "mpirun", "mpiexec":
			srun = true
			n := slices.IndexFunc(words[1:], func(w string) bool { return launcherOf(w) != "" || strings.HasPrefix(path.Base(w), "bash") })
			if n < 0 {
				return false
			}
			words = words[1+n:]
			continue
		case "bash", "sh":
			if i := slices.Index(words, "-c"); i > 0 && i+1 < len(words) && sh != nil {
				words = (&shell{vars: map[string]string{}}).words(words[i+1])
				continue
			}
			if i := slices.Index(words, "-c"); i > 0 && i+1 < len(words) {
				words = (&shell{vars: map[string]string{}}).words(words[i+1])
				continue
			}
			return false
		}
		break
	}
	if len(words) == 0 {
		return false
	}
	c := &call{r: r, where: where, srun: srun, sh: sh}
	return c.launcher(words)
}

var assignmentName = regexp.MustCompile(`^[A-Z_][A-Z0-9_]*$`)

// launcherOf names the launcher that a word is, "" if none.
func launcherOf(word string) string {
	switch b := path.Base(word); {
	case b == "torchrun", b == "accelerate", b == "deepspeed", b == "litgpt", b == "llamafactory-cli", b == "tune", b == "axolotl", b == "trl":
		return b
	case b == "lmf", b == "llamafactory":
		return "llamafactory-cli"
	case strings.HasPrefix(b, "python"):
		return "python"
	}
	return ""
}

// call is a launcher's command while it is read.
type call struct {
	r     *reader
	where string
	srun  bool
	sh    *shell
	gpus  int64
}

// options cuts the options off that stand before the script, with their values.
// bools take none.
func options(words []string, bools ...string) (opts map[string]string, rest []string) {
	opts = map[string]string{}
	for len(words) > 0 && strings.HasPrefix(words[0], "-") && words[0] != "-" {
		key, value, inline := strings.Cut(strings.TrimLeft(words[0], "-"), "=")
		key = strings.ReplaceAll(key, "-", "_")
		words = words[1:]
		switch {
		case inline:
		case slices.Contains(bools, key):
			value = "true"
			if key == "m" || key == "module" {
				opts[key] = value
				return opts, words
			}
		case len(words) > 0 && (!strings.HasPrefix(words[0], "-") || isNumber(words[0])):
			value, words = words[0], words[1:]
		}
		opts[key] = value
	}
	return opts, words
}

func isNumber(s string) bool { _, err := strconv.ParseFloat(s, 64); return err == nil }

// launcher reads the command from its launcher on.
func (c *call) launcher(words []string) bool {
	r := c.r
	name := launcherOf(words[0])
	args := words[1:]
	switch name {
	case "torchrun":
		return c.torchrun(args)
	case "python":
		opts, rest := options(args, "u", "m", "O", "B", "E", "s", "W")
		if len(rest) == 0 {
			return false
		}
		if opts["m"] == "true" {
			switch rest[0] {
			case "torch.distributed.run", "torch.distributed.launch":
				return c.torchrun(rest[1:])
			case "accelerate.commands.launch", "accelerate.commands.accelerate_cli":
				return c.accelerate(slices.DeleteFunc(rest[1:], func(w string) bool { return w == "launch" }))
			case "deepspeed.launcher.runner":
				return c.deepspeed(rest[1:])
			}
		} else if path.Ext(rest[0]) != ".py" && !strings.Contains(rest[0], "$") {
			return false
		}
		return c.script(rest[0], rest[1:])
	case "accelerate":
		if len(args) == 0 || args[0] != "launch" {
			return false
		}
		return c.accelerate(args[1:])
	case "deepspeed":
		return c.deepspeed(args)
	case "litgpt":
		return len(args) > 0 && c.litgpt(args)
	case "llamafactory-cli", "axolotl", "trl":
		if len(args) == 0 || name == "llamafactory-cli" && args[0] != "train" || name == "axolotl" && args[0] != "train" {
			return false
		}
		return c.file(args[1:], name)
	case "tune":
		if len(args) == 0 || args[0] != "run" {
			return false
		}
		opts, rest := options(args[1:], "standalone")
		c.count(opts)
		if len(rest) == 0 {
			return false
		}
		return c.file(rest[1:], name)
	}
	_ = r
	return false
}

// count takes the processes from a launcher's options.
func (c *call) count(opts map[string]string) {
	per, ok := wholeNumber(firstOf(opts, "nproc_per_node"))
	nodes := int64(1)
	if n, is := wholeNumber(c.known(firstOf(opts, "nnodes"))); is {
		nodes = n
	}
	if v := firstOf(opts, "nproc_per_node"); !ok {
		if per, ok = wholeNumber(c.known(v)); !ok && v != "" && v != "auto" && v != "gpu" {
			c.r.out.Warnings = append(c.r.out.Warnings, Warning{WarnUnresolved, c.where, []any{"nproc-per-node", v}})
		}
	}
	if ok {
		c.state(per*nodes, "--nproc-per-node")
	}
}

// known puts in the variables of the scheduler.
func (c *call) known(v string) string {
	if c.sh == nil || v == "" {
		return v
	}
	return c.sh.expand(v)
}

func (c *call) state(gpus int64, name string) {
	if gpus > 0 {
		c.gpus = gpus
		c.r.out.Settings[FieldGPUs] = Stated{Value: strconv.FormatInt(gpus, 10), Name: name, Place: c.where}
	}
}

func firstOf(m map[string]string, keys ...string) string {
	for _, k := range keys {
		if v := m[k]; v != "" {
			return v
		}
	}
	return ""
}

func (c *call) torchrun(args []string) bool {
	opts, rest := options(args, "standalone", "no_python", "m", "module", "use_env")
	c.count(opts)
	if len(rest) == 0 {
		return false
	}
	return c.script(rest[0], rest[1:])
}

// accelerate reads `accelerate launch`, whose options are those of its file.
func (c *call) accelerate(args []string) bool {
	opts, rest := options(args, "multi_gpu", "use_deepspeed", "use_fsdp", "use_megatron_lm", "m", "module", "quiet", "debug", "cpu", "tpu", "no_python", "use_parallelism_config")
	n := &node{shape: object}
	set := func(path, value string) { n.set(path, &node{shape: scalar, text: value, where: c.where}) }
	for k, v := range sorted(opts) {
		switch {
		case k == "use_deepspeed":
			set("distributed_type", "DEEPSPEED")
		case k == "use_fsdp":
			set("distributed_type", "FSDP")
		case k == "multi_gpu":
			set("distributed_type", "MULTI_GPU")
		case strings.HasPrefix(k, "fsdp_"):
			set("fsdp_config."+k, v)
		case k == "zero_stage", k == "deepspeed_config_file", k == "offload_optimizer_device", k == "offload_param_device":
			set("deepspeed_config."+k, v)
		case k == "config_file", k == "m", k == "module":
		case k == "num_processes":
			c.state(func() int64 { n, _ := wholeNumber(c.known(v)); return n }(), "--num_processes")
		default:
			set(k, v)
		}
	}
	sub := newReader("", KindAccelerate, c.r.open, c.r.depth)
	sub.out.Name = c.where
	sub.take(n, form{KindAccelerate, nil, (*reader).accelerate})
	if len(rest) == 0 {
		return false
	}
	ok := c.script(rest[0], rest[1:])
	c.r.out.Also = append(c.r.out.Also, sub.out)
	if f := opts["config_file"]; f != "" {
		c.r.name = fileOf(c.r.out.Name)
		if also := c.r.follow(&node{where: c.where}, "--config_file", f); also != nil {
			if c.gpus > 0 {
				delete(also.Settings, FieldGPUs) // the launcher's own option stands above its file
			}
			sub.out.Also = append(sub.out.Also, also)
			c.r.out.Also = c.r.out.Also[:len(c.r.out.Also)-1]
		}
	}
	return ok
}

// fileOf is the name of a script, "" of a command line.
func fileOf(name string) string {
	if name == commandLine {
		return ""
	}
	return name
}

func (c *call) deepspeed(args []string) bool {
	opts, rest := options(args, "no_local_rank", "no_python", "m", "module", "force_multi")
	nodes := int64(1)
	if n, ok := wholeNumber(c.known(opts["num_nodes"])); ok {
		nodes = n
	}
	if n, ok := wholeNumber(c.known(opts["num_gpus"])); ok {
		c.state(n*nodes, "--num_gpus")
	} else if inc := opts["include"]; inc != "" { // localhost:0,1,2,3
		_, list, _ := strings.Cut(inc, ":")
		c.state(int64(len(strings.Split(list, ","))), "--include")
	}
	if len(rest) == 0 {
		return false
	}
	return c.script(rest[0], rest[1:])
}

// slurm takes the number of processes from the scheduler, where no launcher said
// it.
func (c *call) slurm() {
	if c.gpus > 0 || c.sh == nil || len(c.sh.slurm) == 0 {
		return
	}
	number := func(key string) int64 { n, _ := wholeNumber(lastNumber(c.sh.slurm[key])); return n }
	nodes, tasks, per := max(number("nodes"), 1), number("ntasks"), number("ntasks-per-node")
	switch {
	case c.srun && tasks > 0:
		c.state(tasks, "#SBATCH --ntasks")
	case c.srun && per > 0:
		c.state(nodes*per, "#SBATCH --ntasks-per-node")
	}
}

// tree writes arguments as a tree: --a.b v, --a=v, --flag, a=v.
func (c *call) tree(args []string) (*node, []string) {
	n := &node{shape: object}
	var positional []string
	for i := 0; i < len(args) && len(n.keys) < keysMost; i++ {
		w := args[i]
		if !strings.HasPrefix(w, "-") || isNumber(w) {
			if k, v, ok := strings.Cut(strings.TrimPrefix(w, "+"), "="); ok && k != "" && !strings.ContainsAny(k, " /") {
				n.set(k, &node{shape: scalar, text: v, where: c.where})
			} else {
				positional = append(positional, w)
			}
			continue
		}
		key, value, inline := strings.Cut(strings.TrimLeft(w, "-"), "=")
		if key == "" {
			continue
		}
		v := &node{shape: scalar, text: value, where: c.where}
		if !inline {
			var values []string
			for i+1 < len(args) && (!strings.HasPrefix(args[i+1], "-") || isNumber(args[i+1])) && !keyValue.MatchString(args[i+1]) {
				i++
				values = append(values, args[i])
			}
			switch len(values) {
			case 0:
				v.text = "true"
			case 1:
				v.text = values[0]
			default:
				v.shape, v.text = list, ""
				for _, t := range values {
					v.items = append(v.items, &node{shape: scalar, text: t, where: c.where})
				}
			}
		}
		n.set(strings.ReplaceAll(key, "-", "_"), v)
	}
	return n, positional
}

// keyValue is a word such as batch_size=4.
var keyValue = regexp.MustCompile(`^\+{0,2}[A-Za-z_][\w.]*=`)

// script reads the arguments of a training script.
func (c *call) script(name string, args []string) bool {
	c.slurm()
	r := c.r
	r.name = fileOf(r.out.Name)
	n, positional := c.tree(args)
	base := path.Base(name)
	if looksMegatron(base, n) {
		sub := newReader(r.name, KindMegatron, r.open, r.depth)
		sub.out.Name = c.where
		sub.megatron(n)
		r.out.Also = append([]*Reading{sub.out}, r.out.Also...)
		return true
	}
	// A single file with the arguments, or one that an argument names.
	files := positional
	for _, key := range []string{"job.config_file", "config", "config_file", "train_config", "cfg"} {
		if v := n.at(key); v != nil {
			if s, ok := v.str(); ok {
				files = append(files, s)
				v.read = true
			}
		}
	}
	for _, f := range files {
		if ext := path.Ext(f); ext == ".json" || ext == ".yaml" || ext == ".yml" || ext == ".toml" {
			return c.followed(f, n)
		}
	}
	if len(n.keys) == 0 {
		r.out.Warnings = append(r.out.Warnings, Warning{WarnUnread, c.where, []any{base}})
		return true
	}
	f, ok := kindOf(n)
	if !ok || f.kind == KindUnoom || f.kind == KindModel || f.kind == KindPEFT || f.kind == KindAccelerate {
		f = form{KindTransformers, nil, (*reader).transformers}
	}
	sub := newReader(r.name, f.kind, r.open, r.depth)
	sub.out.Name = c.where
	if f.kind == KindTransformers && among(1, "per_device_train_batch_size", "output_dir", "gradient_accumulation_steps", "num_train_epochs")(n) == 0 {
		sub.plainArguments(n)
	} else {
		sub.take(n, f)
	}
	r.out.Also = append([]*Reading{sub.out}, r.out.Also...)
	return true
}

// followed reads the file with the arguments, the others on top of it.
func (c *call) followed(file string, n *node) bool {
	r := c.r
	var over []override
	n.walk("", func(p string, v *node) {
		if v.shape == scalar && !v.read && p != "" {
			over = append(over, override{p, v.text, c.where})
		}
	})
	r.name = fileOf(r.out.Name)
	found, ok := r.find(file)
	if !ok {
		r.warn(WarnMissingFile, &node{where: c.where}, "argument", file)
		return true
	}
	if r.depth >= followMost {
		return true
	}
	also, err := readFile(found, r.open, r.depth+1, over)
	if err != nil {
		r.warn(WarnMissingFile, &node{where: c.where}, "argument", err.Error())
		return true
	}
	r.out.Also = append([]*Reading{also}, r.out.Also...)
	return true
}

// file reads a launcher that takes a file: llamafactory-cli train x.yaml a=b,
// tune run recipe --config x a=b, axolotl train x.yml --micro-batch-size 2.
func (c *call) file(args []string, launcher string) bool {
	n, positional := c.tree(args)
	files := positional
	if v := n.get("config"); v != nil {
		s, _ := v.str()
		v.read = true
		files = append([]string{s}, files...)
	}
	for _, f := range files {
		if launcher == "tune" || path.Ext(f) != "" {
			return c.followed(f, n)
		}
	}
	return c.script(launcher, args)
}

// litgpt reads litgpt finetune_lora CHECKPOINT --train.micro_batch_size 2.
func (c *call) litgpt(args []string) bool {
	n, positional := c.tree(args[1:])
	if v := n.get("config"); v != nil {
		if s, ok := v.str(); ok {
			v.read = true
			return c.followed(s, n)
		}
	}
	if len(positional) > 0 && n.get("checkpoint_dir") == nil {
		n.set("checkpoint_dir", &node{shape: scalar, text: positional[0], where: c.where})
	}
	if (args[0] == "finetune" || args[0] == "finetune_lora") && n.get("lora_r") == nil {
		n.set("lora_r", &node{shape: scalar, text: "8", where: c.where})
	}
	sub := newReader("", KindLitGPT, c.r.open, c.r.depth)
	sub.out.Name = c.where
	if n.get("train") == nil {
		n.set("train.note", &node{shape: null})
	}
	sub.take(n, form{KindLitGPT, nil, (*reader).litGPT})
	c.r.out.Also = append([]*Reading{sub.out}, c.r.out.Also...)
	return true
}

// plainArguments reads a script of one's own: the names that most people use.
func (r *reader) plainArguments(n *node) {
	r.root = n
	r.assume(FieldFramework, string(PyTorch), "", "the script has none of the Trainer's arguments")
	r.number(FieldMicroBatch, n, "per_device_train_batch_size", "micro_batch_size", "batch_size", "train_batch_size", "bs", "b")
	r.number(FieldAccumulation, n, "gradient_accumulation_steps", "grad_accum", "accumulation_steps", "accum_steps", "accum")
	r.text(FieldOptimizer, n, "optim", "optimizer", "opt")
	r.either(FieldCheckpointing, n, "full", "none", "gradient_checkpointing", "activation_checkpointing", "grad_checkpointing", "use_checkpoint")
	r.either(FieldCompile, n, "true", "", "compile", "torch_compile")
	r.words(FieldAutocast, n, map[string]string{"no": "none", "none": "none", "bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "bfloat16": "bf16", "float16": "fp16"}, "mixed_precision", "amp_dtype")
	r.either(FieldAutocast, n, "bf16", "", "bf16")
	r.either(FieldAutocast, n, "fp16", "", "fp16", "amp")
	r.modelArguments(n)
	r.model(n, "model", "arch")
	r.lengths(n)
	r.text(FieldImage, n, "img_size", "image_size", "resolution")
	r.peftArguments(n)
	r.deepSpeedArgument(n)
	r.unread(n)
}

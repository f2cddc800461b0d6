package supervise

import (
	"strings"
)

// allocVariables are the names under which PyTorch reads its allocator's
// settings; the first that is set wins.
var allocVariables = [...]string{"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}

// mergeAllocConf adds settings to those that the user has. What the user set
// stands, except for the keys that are added; they are the reason for the
// attempt.
func mergeAllocConf(have, add string) string {
	adding := confKeys(add)
	var parts []string
	for _, kv := range splitConf(have) {
		key, _, _ := strings.Cut(kv, ":")
		if _, replaced := adding[strings.TrimSpace(key)]; !replaced {
			parts = append(parts, kv)
		}
	}
	return strings.Join(append(parts, splitConf(add)...), ",")
}

func confKeys(conf string) map[string]string {
	out := map[string]string{}
	for _, kv := range splitConf(conf) {
		key, value, _ := strings.Cut(kv, ":")
		out[strings.TrimSpace(key)] = strings.TrimSpace(value)
	}
	return out
}

// splitConf splits at commas outside brackets: the value of
// roundup_power2_divisions may be a list of its own.
func splitConf(conf string) []string {
	var out []string
	depth, start := 0, 0
	for i := 0; i <= len(conf); i++ {
		switch {
		case i == len(conf) || (conf[i] == ',' && depth == 0):
			if kv := strings.TrimSpace(conf[start:i]); kv != "" {
				out = append(out, kv)
			}
			start = i + 1
		case conf[i] == '[':
			depth++
		case conf[i] == ']':
			depth--
		}
	}
	return out
}

// An environ is a list of NAME=value with replacement.
type environ []string

func (e environ) get(name string) string {
	for i := len(e) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(e[i], name+"="); ok {
			return v
		}
	}
	return ""
}

func (e environ) set(name, value string) environ {
	out := make(environ, 0, len(e)+1)
	for _, kv := range e {
		if !strings.HasPrefix(kv, name+"=") {
			out = append(out, kv)
		}
	}
	return append(out, name+"="+value)
}

// withAllocConf merges allocator settings into the variable that PyTorch will
// read.
func (e environ) withAllocConf(add string) environ {
	if add == "" {
		return e
	}
	name := allocVariables[0] // understood by every version
	for _, n := range allocVariables {
		if e.get(n) != "" {
			name = n
			break
		}
	}
	return e.set(name, mergeAllocConf(e.get(name), add))
}

// withPythonPath puts a folder first on PYTHONPATH.
func (e environ) withPythonPath(dir string) environ {
	if have := e.get("PYTHONPATH"); have != "" {
		dir += ":" + have
	}
	return e.set("PYTHONPATH", dir)
}

package emit

import (
	"encoding/json"
	"strconv"
	"strings"
)

// A pair is one key of an ordered object; the value is a string, a bool, an
// int64, a float64, a list of strings, an object, or a raw expression.
type pair struct {
	key   string
	value any
}

// An object is keys in the order they are written.
type object []pair

// raw is text that stands as it is.
type raw string

// put appends a key, or leaves it where on is false.
func (o *object) put(on bool, key string, value any) {
	if on {
		*o = append(*o, pair{key, value})
	}
}

func (o *object) set(key string, value any) { *o = append(*o, pair{key, value}) }

// quote writes a string that YAML, JSON, TOML and Python all read alike.
//
// JSON's escapes are a subset of all four, but for the escaped slash and
// surrogate pairs, which encoding/json does not write.
func quote(text string) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(text) // a string always encodes
	return strings.TrimSuffix(b.String(), "\n")
}

// yamlOf writes an object as block YAML.
func yamlOf(o object, indent int) string {
	var b strings.Builder
	pad := strings.Repeat(" ", indent)
	for _, p := range o {
		switch v := p.value.(type) {
		case object:
			if len(v) == 0 {
				b.WriteString(pad + p.key + ": {}\n")
				continue
			}
			b.WriteString(pad + p.key + ":\n" + yamlOf(v, indent+2))
		case []string:
			b.WriteString(pad + p.key + ":\n")
			for _, item := range v {
				b.WriteString(pad + "- " + quote(item) + "\n")
			}
		case []object:
			b.WriteString(pad + p.key + ":\n")
			for _, item := range v {
				text := yamlOf(item, indent+2)
				b.WriteString(pad + "- " + strings.TrimPrefix(text, pad+"  "))
			}
		case block:
			b.WriteString(pad + p.key + ": |\n")
			for line := range strings.Lines(string(v)) {
				b.WriteString(pad + "  " + line)
			}
		default:
			b.WriteString(pad + p.key + ": " + scalar(v, "true", "false", "null") + "\n")
		}
	}
	return b.String()
}

// block is text of several lines, written as YAML's literal style.
type block string

// plain words need no quotes in YAML.
func plainWord(text string) bool {
	if text == "" {
		return false
	}
	for i, r := range text {
		letter := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || r == '_'
		if !letter && (i == 0 || !(('0' <= r && r <= '9') || r == '-' || r == '.' || r == '/')) {
			return false
		}
	}
	switch strings.ToLower(text) {
	case "true", "false", "yes", "no", "on", "off", "null", "y", "n":
		return false
	}
	return true
}

func scalar(v any, yes, no, none string) string {
	switch v := v.(type) {
	case nil:
		return none
	case raw:
		return string(v)
	case bool:
		if v {
			return yes
		}
		return no
	case int64:
		return strconv.FormatInt(v, 10)
	case int:
		return strconv.Itoa(v)
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64)
	case string:
		if yes == "true" && none == "null" && plainWord(v) {
			return v
		}
		return quote(v)
	}
	return ""
}

// jsonOf writes an object as indented JSON.
func jsonOf(o object, indent int) string {
	var b strings.Builder
	pad := strings.Repeat("  ", indent+1)
	b.WriteString("{\n")
	for i, p := range o {
		b.WriteString(pad + quote(p.key) + ": ")
		switch v := p.value.(type) {
		case object:
			b.WriteString(jsonOf(v, indent+1))
		case []string:
			b.WriteString("[\n")
			for j, item := range v {
				b.WriteString(pad + "  " + quote(item) + comma(j, len(v)) + "\n")
			}
			b.WriteString(pad + "]")
		case string:
			b.WriteString(quote(v))
		default:
			b.WriteString(scalar(v, "true", "false", "null"))
		}
		b.WriteString(comma(i, len(o)) + "\n")
	}
	b.WriteString(strings.Repeat("  ", indent) + "}")
	return b.String()
}

func comma(i, n int) string {
	if i+1 < n {
		return ","
	}
	return ""
}

// pythonOf writes an object as the arguments of dict(…).
func pythonOf(o object, indent int) string { return callOf("dict", o, indent) }

// A call is an expression of Python that makes an object of a class.
type call struct {
	class string
	args  object
}

// callOf writes an object as the arguments of a class.
func callOf(class string, o object, indent int) string {
	if len(o) == 0 {
		return class + "()"
	}
	if line, ok := shortCall(class, o); ok {
		return line
	}
	var b strings.Builder
	b.WriteString(class + "(\n")
	pad := strings.Repeat("    ", indent+1)
	for _, p := range o {
		b.WriteString(pad + p.key + "=")
		switch v := p.value.(type) {
		case object:
			b.WriteString(pythonOf(v, indent+1))
		case call:
			b.WriteString(callOf(v.class, v.args, indent+1))
		case []string:
			b.WriteString("[")
			for j, item := range v {
				b.WriteString(quote(item))
				if j+1 < len(v) {
					b.WriteString(", ")
				}
			}
			b.WriteString("]")
		default:
			b.WriteString(scalar(v, "True", "False", "None"))
		}
		b.WriteString(",\n")
	}
	b.WriteString(strings.Repeat("    ", indent) + ")")
	return b.String()
}

// shortCall writes a call of one or two plain arguments on one line.
func shortCall(class string, o object) (string, bool) {
	if len(o) > 2 {
		return "", false
	}
	var args []string
	for _, p := range o {
		switch p.value.(type) {
		case object, call, []string:
			return "", false
		}
		args = append(args, p.key+"="+scalar(p.value, "True", "False", "None"))
	}
	line := class + "(" + strings.Join(args, ", ") + ")"
	return line, len(line) <= 80 && !strings.Contains(line, "\n")
}

// tomlOf writes sections, each an object of scalars and lists.
func tomlOf(sections []pair) string {
	var b strings.Builder
	for _, section := range sections {
		o, _ := section.value.(object)
		if len(o) == 0 {
			continue
		}
		b.WriteString("\n[" + section.key + "]\n")
		for _, p := range o {
			b.WriteString(p.key + " = ")
			if list, ok := p.value.([]string); ok {
				b.WriteString("[")
				for i, item := range list {
					b.WriteString(quote(item))
					if i+1 < len(list) {
						b.WriteString(", ")
					}
				}
				b.WriteString("]\n")
				continue
			}
			b.WriteString(scalar(p.value, "true", "false", "") + "\n")
		}
	}
	return b.String()
}

package memory

import (
	"fmt"
	"strconv"
	"strings"
)

// pipelineLayout reads --pipeline-model-parallel-layout: letters of layers (E
// embedding, t transformer layer, m multi-token prediction, L loss), bars
// between stages, *n after a letter or a group in parentheses.
// Source: megatron/core/transformer/pipeline_parallel_layer_layout.py.
func pipelineLayout(text string) ([]string, error) {
	flat, rest, err := unrolled(text)
	if err == nil && rest != "" {
		err = fmt.Errorf("unexpected %q", rest)
	}
	if err != nil {
		return nil, fmt.Errorf("pipeline layout %q: %w", text, err)
	}
	return strings.Split(flat, "|"), nil
}

// layoutMost bounds what repetitions can make of a layout.
const layoutMost = 1 << 16

// unrolled writes repetitions out, up to a closing parenthesis or the end.
func unrolled(s string) (flat, rest string, err error) {
	var b strings.Builder
	for s != "" && s[0] != ')' {
		unit := s[:1]
		s = s[1:]
		switch {
		case unit == "(":
			if unit, s, err = unrolled(s); err != nil {
				return "", "", err
			}
			if !strings.HasPrefix(s, ")") {
				return "", "", fmt.Errorf("a parenthesis is not closed")
			}
			s = s[1:]
		case unit == ",":
			continue
		case !strings.Contains("EtmL|", unit):
			return "", "", fmt.Errorf("%q is not a layer", unit)
		}
		times := 1
		if strings.HasPrefix(s, "*") {
			end := 1
			for end < len(s) && s[end] >= '0' && s[end] <= '9' {
				end++
			}
			if times, err = strconv.Atoi(s[1:end]); err != nil {
				return "", "", fmt.Errorf("%q is not a repetition", s[:end])
			}
			s = s[end:]
		}
		if times < 0 || b.Len()+times*len(unit) > layoutMost {
			return "", "", fmt.Errorf("too many layers")
		}
		b.WriteString(strings.Repeat(unit, times))
	}
	return b.String(), s, nil
}

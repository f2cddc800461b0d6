package workload

import (
	"bytes"
	"errors"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// parseTOML checks a document with the library's decoder, whose errors have
// positions, and then reads its syntax tree for the lines.
func parseTOML(name string, data []byte) (*node, error) {
	var any map[string]any
	if err := toml.Unmarshal(data, &any); err != nil {
		e := &SyntaxError{File: name, Msg: "this is not TOML: " + err.Error()}
		if at, ok := errors.AsType[*toml.DecodeError](err); ok {
			e.Line, e.Column = at.Position()
		}
		return nil, e
	}
	var p unstable.Parser
	p.Reset(data)
	root := &node{shape: object}
	table := ""
	count := 0
	for expressions := 0; p.NextExpression(); expressions++ {
		if expressions > keysMost {
			return nil, &SyntaxError{File: name, Msg: "too many keys for a configuration"}
		}
		e := p.Expression()
		path, line := "", 0
		for it := e.Key(); it.Next(); {
			k := it.Node()
			if path != "" {
				path += "."
			}
			path += string(k.Data)
			if line == 0 && k.Raw.Length > 0 {
				line = 1 + bytes.Count(data[:k.Raw.Offset], []byte("\n"))
			}
		}
		switch e.Kind {
		case unstable.Table, unstable.ArrayTable:
			table = path
			if root.at(path) == nil {
				root.set(path, &node{shape: object, line: line})
			}
		case unstable.KeyValue:
			v, err := tomlValue(name, e.Value(), line, 0, &count)
			if err != nil {
				return nil, err
			}
			if table != "" {
				path = table + "." + path
			}
			root.set(path, v)
		}
	}
	if err := p.Error(); err != nil {
		return nil, &SyntaxError{File: name, Msg: "this is not TOML: " + err.Error()}
	}
	return root, nil
}

func tomlValue(name string, v *unstable.Node, line, depth int, count *int) (*node, error) {
	if *count++; *count > nodesMost || depth > depthMost {
		return nil, &SyntaxError{File: name, Line: line, Msg: "too deep or too large for a configuration"}
	}
	n := &node{line: line, shape: scalar, text: string(v.Data)}
	switch v.Kind {
	case unstable.Array, unstable.InlineTable:
		n.shape, n.text = list, ""
		for it := v.Children(); it.Next(); {
			c := it.Node()
			if v.Kind == unstable.InlineTable {
				n.shape = object
				key := ""
				for k := c.Key(); k.Next(); {
					key = string(k.Node().Data)
				}
				n.keys = append(n.keys, key)
				c = c.Value()
			}
			item, err := tomlValue(name, c, line, depth+1, count)
			if err != nil {
				return nil, err
			}
			n.items = append(n.items, item)
		}
	}
	return n, nil
}

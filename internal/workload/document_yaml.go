package workload

import (
	"errors"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// yamlReader turns a syntax tree of YAML into nodes. Anchors are followed, within
// the bound on nodes.
type yamlReader struct {
	name    string
	anchors map[string]ast.Node
	count   int
}

func parseYAML(name string, data []byte) (n *node, err error) {
	defer func() { // the library has panicked on hostile input before
		if recover() != nil {
			n, err = nil, &SyntaxError{File: name, Msg: "this is not YAML"}
		}
	}()
	f, err := parser.ParseBytes(data, 0)
	if err != nil {
		return nil, yamlError(name, err)
	}
	r := &yamlReader{name: name, anchors: map[string]ast.Node{}}
	for _, d := range f.Docs {
		if d.Body == nil {
			continue
		}
		if n != nil {
			return nil, &SyntaxError{File: name, Line: lineOf(d.Body), Msg: "a second document begins here; one configuration is one document"}
		}
		if n, err = r.value(d.Body, 0); err != nil {
			return nil, err
		}
	}
	if n == nil {
		return nil, &SyntaxError{File: name, Msg: "the file says nothing"}
	}
	return n, nil
}

func yamlError(name string, err error) error {
	if e, ok := errors.AsType[yaml.Error](err); ok {
		if t := e.GetToken(); t != nil && t.Position != nil {
			return &SyntaxError{File: name, Line: t.Position.Line, Column: t.Position.Column, Msg: "this is not YAML: " + e.GetMessage()}
		}
	}
	first, _, _ := strings.Cut(err.Error(), "\n")
	return &SyntaxError{File: name, Msg: "this is not YAML: " + first}
}

func lineOf(n ast.Node) int {
	if t := n.GetToken(); t != nil && t.Position != nil {
		return t.Position.Line
	}
	return 0
}

func (r *yamlReader) value(a ast.Node, depth int) (*node, error) {
	if r.count++; r.count > nodesMost || depth > depthMost {
		return nil, &SyntaxError{File: r.name, Line: lineOf(a), Msg: "too deep or too large for a configuration"}
	}
	n := &node{line: lineOf(a)}
	switch v := a.(type) {
	case nil, *ast.NullNode:
	case *ast.StringNode:
		n.shape, n.text = scalar, v.Value
	case *ast.LiteralNode:
		n.shape, n.text = scalar, v.Value.Value
	case *ast.TagNode:
		return r.value(v.Value, depth+1)
	case *ast.AnchorNode:
		if name, ok := v.Name.(*ast.StringNode); ok {
			r.anchors[name.Value] = v.Value
		} else if v.Name != nil {
			r.anchors[v.Name.String()] = v.Value
		}
		return r.value(v.Value, depth+1)
	case *ast.AliasNode:
		target, ok := r.anchors[v.Value.String()]
		if !ok {
			return nil, &SyntaxError{File: r.name, Line: n.line, Msg: "*" + v.Value.String() + " has no anchor before it"}
		}
		return r.value(target, depth+1)
	case *ast.MappingNode:
		n.shape = object
		for _, e := range v.Values {
			if err := r.entry(n, e, depth); err != nil {
				return nil, err
			}
		}
	case *ast.MappingValueNode:
		n.shape = object
		if err := r.entry(n, v, depth); err != nil {
			return nil, err
		}
	case *ast.SequenceNode:
		n.shape = list
		for _, e := range v.Values {
			item, err := r.value(e, depth+1)
			if err != nil {
				return nil, err
			}
			n.items = append(n.items, item)
		}
	case ast.ScalarNode:
		n.shape, n.text = scalar, strings.TrimSpace(v.GetToken().Value)
	default:
		return nil, &SyntaxError{File: r.name, Line: n.line, Msg: "this form of YAML is not read"}
	}
	return n, nil
}

// entry adds a pair; "<<" adds what it refers to, behind what is said itself.
func (r *yamlReader) entry(n *node, e *ast.MappingValueNode, depth int) error {
	item, err := r.value(e.Value, depth+1)
	if err != nil {
		return err
	}
	if _, merge := e.Key.(*ast.MergeKeyNode); merge {
		n.keys, n.items = append(append([]string(nil), item.keys...), n.keys...), append(append([]*node(nil), item.items...), n.items...)
		return nil
	}
	key := e.Key.GetToken().Value
	if len(n.keys) >= keysMost {
		return &SyntaxError{File: r.name, Line: lineOf(e.Key), Msg: "too many keys for a configuration"}
	}
	if n.child(key) != nil {
		return &SyntaxError{File: r.name, Line: lineOf(e.Key), Msg: "the key " + key + " stands here for the second time"}
	}
	if line := lineOf(e.Key); line > 0 {
		item.line = line
	}
	n.keys, n.items = append(n.keys, key), append(n.items, item)
	return nil
}

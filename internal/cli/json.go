package cli

import (
	"encoding/json"
)

// A warning is something wrong with an input that did not prevent an answer.
type warning struct {
	Code  string `json:"code"`
	Msg   string `json:"msg"`
	Where string `json:"where,omitempty"`
}

// envelope is the outermost object of every --json output.
type envelope struct {
	Schema   string    `json:"schema"`
	Warnings []warning `json:"warnings"`
	Data     any       `json:"data"`
}

// printJSON writes data under a schema name such as "unoom/explain/v1".
func (a *app) printJSON(schema string, warnings []warning, data any) error {
	if warnings == nil {
		warnings = []warning{}
	}
	enc := json.NewEncoder(a.Out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(envelope{schema, warnings, data})
}

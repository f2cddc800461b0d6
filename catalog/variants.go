package catalog

import _ "embed" // for the string below

// Variants is a JSON array of the entries of variants/*.yaml: what differs by
// library and version where it shows in memory. internal/memory reads it.
//
//go:embed variants.json
var Variants string

package catalog

import _ "embed" // for the string below

// Clouds is a JSON array of the entries of clouds/*.yaml: machines for rent with
// dated prices. internal/cloud reads it.
//
//go:embed clouds.json
var Clouds string

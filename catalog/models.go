package catalog

import _ "embed" // for the strings below

//go:generate go run ../tools/catalog

// Models is a JSON array of the entries of models/*.yaml, which is the reviewed
// source; internal/model reads it. JSON, because parsing the YAML at every start
// would take longer than everything else a command does.
//
//go:embed models.json
var Models string

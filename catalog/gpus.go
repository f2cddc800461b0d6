package catalog

import _ "embed" // for the string below

// GPUs is a JSON array of the entries of gpus/*.yaml, which is the reviewed
// source; internal/gpu reads it.
//
//go:embed gpus.json
var GPUs string

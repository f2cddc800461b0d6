// Package catalog embeds the data files of the program. It has no logic: each
// set of files is read by the room that it belongs to.
package catalog

import "embed"

// Remedies holds remedies/CODE.LANG.md, one page for each remedy and language;
// internal/remedy reads them.
//
//go:embed remedies/*.md
var Remedies embed.FS
